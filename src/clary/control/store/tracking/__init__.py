"""Experiments, trials, their components, metrics and associations in the database."""
