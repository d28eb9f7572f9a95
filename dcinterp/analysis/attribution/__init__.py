"""Which heads and edges make an answer."""
