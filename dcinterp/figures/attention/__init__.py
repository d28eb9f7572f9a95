"""Figures of `dcinterp.analysis.attention`."""
