"""Group and transaction coordinators of the light broker."""
