"""How a unit of work ends: a Kafka transaction, and what may stand in its place."""
