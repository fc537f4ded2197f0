"""``python -m onceflow`` is the command ``onceflow``, for where it is not on the path."""

from __future__ import annotations

from onceflow.cli import main

if __name__ == "__main__":
    main()
