"""How heads are composed."""
