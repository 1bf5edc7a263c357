"""Benchmarks of a job's life: start, warm start, signals, failures, recovery, spot, many at once."""
