"""Limits of a host's processes: cgroups of version 1 and 2, and limits of one process."""
