"""Checkpoints of SMP v2: full, sharded and local states, slices, and folders."""
