"""onceflow: Kafka's protocol from Python, with exactly-once processing.

The areas are ``onceflow.sdk`` (clients), ``onceflow.transactions`` (sessions),
``onceflow.processors`` (decorated functions), ``onceflow.broker_lite`` (the bundled broker)
and ``onceflow.spark_integration``. This module holds the version and imports nothing else.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
