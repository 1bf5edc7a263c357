"""What every request passes before a handler sees it: connections, heads, names, identities and bodies."""
