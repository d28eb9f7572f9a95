"""Figures of `dcinterp.analysis.circuits`."""
