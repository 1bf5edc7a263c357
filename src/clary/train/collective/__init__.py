"""Data parallel training: groups of ranks that reduce, gather and exchange tensors, on any machine.

bootstrap/    discovery of ranks and their hosts, and authenticated connections between ranks
communicator  one group over a core (clary.train._native), for buffers of any kind
adapters/     numpy, torch, tensorflow: the only modules that import frameworks
"""
