"""Goal: the record modules load no more than they need, and leave other libraries as they are.

Method: each order of imports runs in an interpreter of its own, where modules are counted.
"""

from __future__ import annotations

import subprocess
import sys

NOT_LOADED = """
import sys
loaded = {name.split(".")[0] for name in sys.modules}
assert not loaded & {"aiokafka", "asyncio", "crc32c", "msgspec", "socket", "ssl"}, loaded
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_importing_records_loads_no_library_of_codecs_or_checksums() -> None:
    run("import onceflow.sdk.protocol.records\n" + NOT_LOADED)


def test_a_checksum_loads_the_function_alone_and_its_package_stays_usable() -> None:
    run(
        "from onceflow.sdk.protocol import batch_header\n"
        "ours = batch_header.crc32c(b'onceflow')\n"
        "import sys\n"
        "assert not {'argparse', 'email', 'importlib.metadata'} & set(sys.modules)\n"
        "import crc32c\n"
        "assert crc32c.crc32c(b'onceflow') == ours == batch_header.crc32c(b'onceflow')\n"
    )
