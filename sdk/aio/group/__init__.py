"""The task that keeps a consumer in its group, and its offset commits."""
