"""Hosts on nodes of a Slurm cluster: one batch job a pool, one step a host."""
