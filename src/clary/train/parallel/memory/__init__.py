"""Less memory for the same training.

segments        which modules of a sequence are recomputed together; pure
checkpointing   activations that are not kept but computed again
offloading      what checkpointing keeps goes to host memory or to a file until backward needs it
kept            one tensor that was offloaded
spill           the file: what is written and read behind the training's back
extents         which part of the file is free; pure
delayed         parameters that have no memory until it is known which rank owns them
recording       how each of them is to be initialised, written down and done later
recording_modes how torch tells a recording what is computed
"""
