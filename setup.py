"""What pyproject.toml cannot say: with ONCEFLOW_COMPILE=1 the record kernel becomes machine code.

It needs mypy and a C compiler where it is built, so it is built without isolation:
``pip install mypy 'setuptools>=77'``, then
``ONCEFLOW_COMPILE=1 pip install --no-build-isolation onceflow``.
The Python source stays beside it and is what other interpreters use.
"""

import os

from setuptools import setup

KERNEL = "src/onceflow/sdk/protocol/record_kernel.py"

if os.environ.get("ONCEFLOW_COMPILE") == "1":
    from mypyc.build import mypycify

    setup(ext_modules=mypycify([KERNEL], opt_level="3"))
else:
    setup()
