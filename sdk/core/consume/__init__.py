"""From a fetch answer to the application's records, and the positions in between."""
