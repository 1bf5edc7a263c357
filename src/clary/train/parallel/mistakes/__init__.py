"""Detects mistakes of scripts that arguments alone do not show: by comparing ranks, or at a later call."""
