"""Sockets of the broker: listeners, connections, and the bytes that they hold."""
