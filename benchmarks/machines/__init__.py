"""Benchmarks of hosts on other machines: a real Slurm, and boxes with a real sshd, in namespaces."""
