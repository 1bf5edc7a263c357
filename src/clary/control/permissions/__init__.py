"""Permissions of keys: an attempt's key opens the places that its job's request names, the owner's key all places."""
