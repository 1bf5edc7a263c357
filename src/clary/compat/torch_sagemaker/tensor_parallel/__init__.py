"""Tensor parallelism of SMP v2."""
