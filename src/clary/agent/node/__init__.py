"""Daemon of a box: leases of hosts, started, kept and ended. Standard library of Python 3.10, in one zip file."""
