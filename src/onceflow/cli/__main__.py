"""``python -m onceflow.cli`` is the command ``onceflow``."""

from __future__ import annotations

from onceflow.cli import main

if __name__ == "__main__":
    main()
