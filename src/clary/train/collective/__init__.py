"""Data parallel: groups of ranks that reduce, gather and pass tensors, on any machine.

bootstrap/    who the ranks are, which share a host, and authenticated connections between them
communicator  one group over a core (clary.train._native), for buffers of any kind
adapters/     numpy, torch, tensorflow: where a framework is imported, and nowhere else
"""
