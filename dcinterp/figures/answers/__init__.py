"""Figures of `dcinterp.analysis.answers`."""
