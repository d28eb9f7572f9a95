"""Figures of `dcinterp.analysis.attribution`."""
