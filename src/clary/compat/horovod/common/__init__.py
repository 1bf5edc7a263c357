"""Modules that the interfaces for all frameworks share."""
