"""Permissions of keys: a key of an attempt opens resources that its job's request names, the owner's key everything."""
