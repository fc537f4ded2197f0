"""Makes .setup/plain: the package as links to its sources, without the machine code beside them.

``make test PLAIN=1`` puts the folder before the tree, so that the tests and every process that they
start run plain Python.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "onceflow"
TARGET = ROOT / ".setup" / "plain"


def main() -> None:
    """Make the folder anew."""
    shutil.rmtree(TARGET, ignore_errors=True)
    for folder, folders, files in os.walk(PACKAGE, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        target = TARGET / "onceflow" / Path(folder).relative_to(PACKAGE)
        target.mkdir(parents=True)
        for name in files:
            if name == "py.typed" or name.endswith((".py", ".json")):
                (target / name).symlink_to(Path(folder, name).resolve())


if __name__ == "__main__":
    main()
