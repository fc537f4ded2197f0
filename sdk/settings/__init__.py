"""Settings of the clients: what there is, where they may come from, how they are checked."""
