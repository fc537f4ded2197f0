"""Flights joined to the weather at their hour, as a stream on Spark, published exactly once."""
