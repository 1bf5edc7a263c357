"""Hosts on this machine: namespaces if the kernel permits them, else plain processes."""
