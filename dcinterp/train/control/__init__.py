"""Runs from outside: starting many, stopping, resuming, one at a time."""
