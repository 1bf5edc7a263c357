"""Checks of every request before a handler sees it: connections, heads, names, identities and bodies."""
