"""Package of the onceflow distribution."""
