"""Hosts on nodes of a Slurm cluster: a batch job for each pool and for replaced hosts, and a step for each host."""
