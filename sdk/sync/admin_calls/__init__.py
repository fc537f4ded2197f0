"""The calls of the blocking admin client, by subject."""
