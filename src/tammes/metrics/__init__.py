"""Measures of trained models, from arrays alone."""
