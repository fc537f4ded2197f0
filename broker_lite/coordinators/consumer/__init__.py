"""Groups whose coordinator divides the partitions (KIP-848)."""
