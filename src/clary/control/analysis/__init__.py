"""Analyses of stored jobs: their failures, and the use of their time. Pure."""
