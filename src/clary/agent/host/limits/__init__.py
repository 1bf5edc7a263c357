"""Limits on a host's processes: cgroups of version 1 and 2, and per-process limits."""
