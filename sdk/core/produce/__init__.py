"""From the user's record to the broker's acknowledgement, alone or in a transaction."""
