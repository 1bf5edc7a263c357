"""Benchmarks of collectives: on one host, between hosts, under training, against gloo and MPI."""
