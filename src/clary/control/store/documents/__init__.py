"""Numbered JSON documents of jobs: their rows, and the folders in which older releases had them."""
