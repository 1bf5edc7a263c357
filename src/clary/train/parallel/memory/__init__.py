"""Savings of memory in training.

segments        which modules of a sequence are recomputed together; pure
checkpointing   activations that are recomputed, not kept
offloading      tensors that checkpointing keeps go to host memory or to a file until backward needs them
kept            one tensor that was offloaded
spill           the file of offloaded tensors, written and read in the background
extents         free and taken parts of the file; pure
delayed         parameters that have no memory until it is known which rank owns them
recording       their initialisation, recorded and run later
recording_modes the modes through which torch reports operations to a recording
"""
