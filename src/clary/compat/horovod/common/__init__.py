"""Modules that Horovod's interfaces for all frameworks share."""
