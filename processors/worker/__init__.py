"""One worker of an application: its loop, and what the loop uses."""
