"""Benchmarks of training: steps, memory, pipelines, sharding, checkpoints, parity."""
