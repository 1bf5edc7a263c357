"""Loops that load, decide (pure) and apply: the only place where jobs are moved."""
