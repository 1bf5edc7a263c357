"""The capture of tensors from a running model, and their writing."""
