"""Goal: the compiled record codec is loaded late and alone, and aiokafka itself stays usable.

Method: each order of imports runs in an interpreter of its own, where modules are counted and
batches of both libraries are read.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

USE_OURS = """
from onceflow.sdk.protocol import batch_building, batch_reading, record_codec, records
batch_building.kernel_in_use = batch_reading.kernel_in_use = lambda: False
batch = bytes(records.encode_batch([(1, b"key", b"value" * 50, [("h", None)])], codec=1))
assert records.decode_batch(batch)[0].key == b"key"
assert record_codec.COMPILED
"""

USE_AIOKAFKA = """
import aiokafka
import aiokafka.errors
import aiokafka.codec
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
assert aiokafka.AIOKafkaProducer and aiokafka.errors.KafkaError and aiokafka.codec.has_snappy()
for codec in range(5):
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    builder.append(0, 1, b"key", b"value" * 50, [])
    data = bytes(builder.build())
    (record,) = MemoryRecords(data).next_batch()
    assert record.value == b"value" * 50
broken = bytearray(data)
broken[23:27] = broken[57:61] = (7).to_bytes(4, "big")
try:
    list(DefaultRecordBatch(bytes(broken)))
except aiokafka.errors.CorruptRecordException:
    pass
else:
    raise AssertionError("a broken batch was read")
"""

NOT_LOADED = """
import sys
loaded = {name.split(".")[0] for name in sys.modules}
assert not loaded & {"aiokafka", "asyncio", "socket", "ssl"}, loaded
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_importing_records_loads_no_codec() -> None:
    run("import onceflow.sdk.protocol.records\n" + NOT_LOADED + "assert 'crc32c' not in loaded\n")


def test_a_checksum_loads_the_function_alone_and_its_package_stays_usable() -> None:
    run(
        "from onceflow.sdk.protocol import batch_header\n"
        "ours = batch_header.crc32c(b'onceflow')\n"
        "import sys\n"
        "assert not {'argparse', 'email', 'importlib.metadata'} & set(sys.modules)\n"
        "import crc32c\n"
        "assert crc32c.crc32c(b'onceflow') == ours == batch_header.crc32c(b'onceflow')\n"
    )


def test_using_records_loads_the_extension_without_the_client_around_it() -> None:
    run(
        USE_OURS
        + "import sys\n"
        + "ours = sorted(name for name in sys.modules if name.startswith('aiokafka'))\n"
        + "assert ours == ['aiokafka.record._crecords.cutil',"
        + " 'aiokafka.record._crecords.default_records'], ours\n"
        + "assert 'asyncio' not in sys.modules\n"
    )


@pytest.mark.parametrize(
    "order",
    [(USE_OURS, USE_AIOKAFKA), (USE_AIOKAFKA, USE_OURS), (USE_OURS, USE_AIOKAFKA, USE_OURS)],
    ids=["aiokafka later", "aiokafka earlier", "both again"],
)
def test_both_libraries_work_in_any_order(order: tuple[str, ...]) -> None:
    run("\n".join(order))


def test_without_the_extension_aiokafkas_python_code_serves() -> None:
    run(
        "import os; os.environ['AIOKAFKA_NO_EXTENSIONS'] = '1'\n"
        "import importlib.machinery; importlib.machinery.EXTENSION_SUFFIXES[:] = []\n"
        "from onceflow.sdk.protocol import record_codec, records\n"
        "assert not record_codec.COMPILED\n"
        "batch = bytes(records.encode_batch([(1, b'key', b'value', [('h', None)])]))\n"
        "assert records.decode_batch(batch)[0].headers == [('h', None)]\n"
        "records.validate_batch(batch)\n"
        "broken = bytearray(batch); broken[61] = 40\n"
        "try:\n"
        "    records.decode_batch(broken, verify_crc=False)\n"
        "except records.InvalidBatchError:\n"
        "    pass\n"
        "else:\n"
        "    raise AssertionError('a broken batch was read')\n"
    )
