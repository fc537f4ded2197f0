"""Applications of decorated functions as Spark pipelines: the same tasks, over Spark's state."""
