"""Benchmarks of the service: its API, its edge, its console, and its load when idle."""
