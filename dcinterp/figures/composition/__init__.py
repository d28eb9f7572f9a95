"""Figures of `dcinterp.analysis.composition`."""
