"""Analyses of stored jobs: their fates, and the use of their time. Pure."""
