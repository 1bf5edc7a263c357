"""Not supported: the import raises an error."""

raise ImportError("smdebug.mxnet: only PyTorch is supported: use smdebug.pytorch, or save from the program.")
