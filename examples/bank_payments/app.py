"""A bank: balances in PostgreSQL, payments and their results in topics, all in one step.

    python -m examples.bank_payments.app

A payment that the payer cannot cover goes to payments-refused: the database's own rule decides.
"""

import json
import os
import signal
import threading

import psycopg

from onceflow.transactions.two_phase import TwoPhaseSession

DSN = os.environ.get("ONCEFLOW_DSN", "postgresql://localhost:5432/bank")
BOOTSTRAP = os.environ.get("ONCEFLOW_BOOTSTRAP_SERVERS", "localhost:9092")
SLOT = os.environ.get("ONCEFLOW_SLOT", "0")

CHANGE = "UPDATE accounts SET cents = cents + %s WHERE name = %s"


def make_tables() -> None:
    with psycopg.connect(DSN) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS accounts (name text PRIMARY KEY,"
            " cents bigint NOT NULL CHECK (cents >= 0))"
        )
        connection.execute(
            "INSERT INTO accounts VALUES ('ann', 10000), ('bob', 10000) ON CONFLICT DO NOTHING"
        )


def pay(connection: psycopg.Connection, payment: dict[str, object]) -> bool:
    """Move the money, or nothing where the payer has too little."""
    try:
        with connection.transaction():  # a savepoint in the transaction of the session
            connection.execute(CHANGE, (payment["cents"], payment["payee"]))
            connection.execute(CHANGE, (-int(str(payment["cents"])), payment["payer"]))
    except psycopg.errors.CheckViolation:
        return False
    return True


def main() -> None:
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    make_tables()
    with TwoPhaseSession(
        DSN,
        topics=["payments"],
        bootstrap_servers=BOOTSTRAP,
        group_id="bank",
        slot=SLOT,
        commit_interval_ms=100,
        # A static member: the slot's next process goes on at once, not after session_timeout_ms.
        consumer_settings={"group_instance_id": f"bank-{SLOT}"},
    ) as session:
        while not stopping.is_set():
            for records in session.poll(200).values():
                for record in records:
                    done = pay(session.connection, json.loads(record.value or b"{}"))
                    topic = "payments-done" if done else "payments-refused"
                    session.send(topic, record.value, key=record.key)
            if session.commit_due:
                session.commit()
        session.commit()


if __name__ == "__main__":
    main()
