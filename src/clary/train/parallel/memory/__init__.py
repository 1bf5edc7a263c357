"""Reduction of memory use in training.

segments        which modules of a sequence are recomputed together; pure
checkpointing   activations that are recomputed instead of kept
offloading      moves tensors that checkpointing keeps to host memory or to a file until backward needs them
kept            one tensor that was offloaded
spill           the file of offloaded tensors, written and read in the background
extents         free and allocated parts of the file; pure
delayed         parameters without memory until their owning rank is known
recording       initialisation of delayed parameters, recorded and replayed later
recording_modes the modes through which torch reports operations to a recording
"""
