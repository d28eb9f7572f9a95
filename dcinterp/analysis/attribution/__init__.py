"""Which heads and edges contribute to an answer."""
