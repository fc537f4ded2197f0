"""A console in the browser for any Kafka cluster: topics, messages, groups with lag, transactions.

It reads and changes nothing. What neither the command line nor other consoles show are
transactions: each record is marked committed, aborted or open, and markers are shown.

``pip install 'onceflow[console]'`` brings the web server; ``onceflow console`` starts it.
"""
