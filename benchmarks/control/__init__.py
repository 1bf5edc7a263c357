"""Benchmarks of the service: its API, its edge, its console, and what it takes when idle."""
