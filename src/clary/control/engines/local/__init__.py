"""Hosts on this machine: namespaces where the kernel permits them, plain processes elsewhere."""
