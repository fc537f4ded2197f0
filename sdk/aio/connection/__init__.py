"""Sockets, connections by node, and what the pool knows of the cluster."""
