"""Context parallelism of SMP v2."""
