"""Groups of the consumer protocol, whose coordinator assigns partitions (KIP-848)."""
