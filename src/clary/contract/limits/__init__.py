"""Limits of hosts: names of their cgroups, and the keepers of their memory limits."""
