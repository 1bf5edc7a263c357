"""Hosts on boxes: a person's machines, which are reached over SSH or join the service by themselves."""
