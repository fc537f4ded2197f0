"""What pyproject.toml cannot say: with ONCEFLOW_COMPILE=1 a few modules become machine code.

It needs mypy and a C compiler where it is built, so it is built without isolation:
``pip install 'mypy>=2.4' 'setuptools>=77'``, then
``ONCEFLOW_COMPILE=1 pip install --no-build-isolation onceflow``.
The Python sources stay beside them and are what other interpreters use.
"""

import os

from setuptools import setup

# What costs something for each record. `tools/compile.sh` reads these lines.
COMPILED = (
    "sdk/protocol/record_kernel",
    "sdk/core/produce/batch",
    "sdk/core/produce/accumulator",
    "sdk/sync/delivery",
    "sdk/aio/produce/delivery",
)

if os.environ.get("ONCEFLOW_COMPILE") == "1":
    from mypyc.build import mypycify

    paths = [f"src/onceflow/{name}.py" for name in COMPILED]
    modules = mypycify(paths, group_name="onceflow.sdk.compiled", opt_level="3")
    for module in modules:
        module.extra_compile_args.append("-fno-semantic-interposition")  # calls within it: inlined
    setup(ext_modules=modules)
else:
    setup()
