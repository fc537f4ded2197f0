"""Nodes at work: what is done for each record."""
