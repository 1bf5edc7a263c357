"""Benchmarks of the views of jobs: logs, metrics, samples, tensors, verdicts."""
