"""Requests of administration: one exchange each."""
