"""Checkpoints of SMP v2: full, sharded and local states, their slices and their folders."""
