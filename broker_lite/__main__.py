"""``python -m onceflow.broker_lite``: the same as ``onceflow broker``."""

from onceflow.broker_lite.daemon import early_stop

if __name__ == "__main__":
    early_stop.watch()
    from onceflow.broker_lite import open_for_tests
    from onceflow.broker_lite.daemon.commands import broker

    broker(prog_name="python -m onceflow.broker_lite", obj=open_for_tests)
