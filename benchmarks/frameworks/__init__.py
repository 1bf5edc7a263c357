"""Frameworks and libraries that programs bring, beside the originals."""
