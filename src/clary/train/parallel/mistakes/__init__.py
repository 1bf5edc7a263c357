"""Detection of script mistakes that arguments alone do not show: by comparing ranks, or at a later call."""
