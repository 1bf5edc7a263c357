"""Modules that all faces of Horovod share."""
