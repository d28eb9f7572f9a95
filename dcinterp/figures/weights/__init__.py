"""Figures of `dcinterp.analysis.weights`."""
