"""Numbered JSON documents of jobs: their rows, and the folders of older releases."""
