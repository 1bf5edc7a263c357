"""Benchmarks of hyperparameter tuning."""
