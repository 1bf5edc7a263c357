"""The search, signalling and end of a host's processes."""
