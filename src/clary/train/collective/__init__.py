"""Data parallel: groups of ranks that reduce, gather and pass tensors, on any machine.

bootstrap/    the ranks, the hosts that they share, and authenticated connections between them
communicator  one group over a core (clary.train._native), for buffers of any kind
adapters/     numpy, torch, tensorflow: the only modules that import frameworks
"""
