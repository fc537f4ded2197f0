"""Settings of broker, topics, groups and listeners, by Kafka's property names."""
