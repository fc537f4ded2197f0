"""``python -m onceflow.broker_lite``: the same as ``onceflow broker``."""

from onceflow.broker_lite.commands import broker

if __name__ == "__main__":
    broker(prog_name="python -m onceflow.broker_lite")
