"""``onceflow doctor``: looks for known faults of a cluster, an application or a running group.

``checks`` is the table of all checks; each group of checks is a module. ``facts`` asks the brokers,
each question once, and ``findings`` carries the checks out.
"""
