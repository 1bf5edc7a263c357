"""Puts `torch_programs`, which the folders here share, on the path of their tests."""
