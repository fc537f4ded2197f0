"""Example: the flights of 2013, exactly once (see README.md)."""
