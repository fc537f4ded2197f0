"""One connection to a broker, and what a client knows of the cluster."""
