"""Daemon of a box: it starts, keeps and ends leases of hosts. Only Python 3.10's standard library; one zip file."""
