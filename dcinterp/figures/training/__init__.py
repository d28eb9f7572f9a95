"""Figures of `dcinterp.analysis.training`."""
