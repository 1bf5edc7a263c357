"""Mistakes of scripts that take more than a look at the arguments: found by comparing ranks, or at a later call."""
