"""Ledgers, which end units of work: by Kafka transactions, at least once, or in a sink."""
