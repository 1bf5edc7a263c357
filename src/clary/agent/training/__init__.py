"""Readers of the files in which a program records its training, while these files grow."""
