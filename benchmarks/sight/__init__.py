"""Benchmarks of what is seen of jobs: logs, metrics, samples, tensors, verdicts."""
