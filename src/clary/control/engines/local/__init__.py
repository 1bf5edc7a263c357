"""Hosts on this machine: namespaces where they can be had, plain processes where not."""
