"""Figures of `dcinterp.mechanism.interventions`."""
