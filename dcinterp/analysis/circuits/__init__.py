"""Circuits: methods held to circuits that are known."""
