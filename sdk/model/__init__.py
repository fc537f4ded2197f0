"""Values that users of the SDK meet: partitions, records, what admin calls take and give."""
