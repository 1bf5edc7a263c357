"""Loops that load state, decide (pure) and apply decisions; only this package changes the states of jobs."""
