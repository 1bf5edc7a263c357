"""Loops that load, decide (pure) and apply: the only place where the states of jobs are changed."""
