"""Goal: global tables are read and followed over real sockets, committed records only.

Method: the in-process broker; a worker reads rows of three partitions, one of them in an aborted
transaction, and meets a row that is written while it runs.
"""

import threading
from pathlib import Path
from typing import Annotated

from processor_processes import committed_values, wait_for

from onceflow.broker_lite import Broker
from onceflow.processors import App
from onceflow.sdk import Producer


def test_rows_are_read_first_and_followed(tmp_path: Path) -> None:
    with Broker() as broker:
        broker.create_topic("orders", partitions=2)
        broker.create_topic("countries", partitions=3)
        app = App("shop", broker.bootstrap_servers, state_dir=tmp_path, commit_interval_ms=20)
        countries = app.global_table("countries", str, key=str)

        @app.processor("orders", to="out")
        def enrich(
            code: str, country: Annotated[str | None, countries.by(lambda code: code)]
        ) -> str:
            return f"{code}:{country}"

        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="rows") as rows:
            rows.init_transactions()
            rows.begin_transaction()
            for code in ("fr", "it", "es", "de", "pl"):
                rows.send("countries", f"name of {code}".encode(), key=code.encode())
            rows.commit_transaction()
            rows.begin_transaction()
            rows.send("countries", b"aborted", key=b"fr")
            rows.flush()
            rows.abort_transaction()
        with Producer(bootstrap_servers=broker.bootstrap_servers) as orders:
            for number, code in enumerate(("fr", "it", "es", "de", "pl", "xx")):
                orders.send("orders", code.encode(), partition=number % 2)
            orders.flush()

            def results() -> list[bytes]:
                return committed_values(broker.bootstrap_servers, "out")

            thread = threading.Thread(target=app.run)
            thread.start()
            try:
                wait_for(
                    lambda: len(committed_values(broker.bootstrap_servers, "out")) >= 6,
                    "six results",
                )
                orders.send("countries", b"late", key=b"xx")
                orders.flush()

                def met() -> bool:
                    orders.send("orders", b"xx", partition=0)
                    orders.flush()
                    return b"xx:late" in results()

                wait_for(met, "a record that meets the late row")
            finally:
                app.stop()
                thread.join(30)
        found = set(committed_values(broker.bootstrap_servers, "out"))
        assert found >= {b"%b:name of %b" % (c, c) for c in (b"fr", b"it", b"es", b"de", b"pl")}
        assert b"xx:None" in found
