"""A program's own files about its training, read while they grow."""
