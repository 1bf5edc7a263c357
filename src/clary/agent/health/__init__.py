"""Checks of one host and its links: measurements, and verdicts in `host_verdicts` and `link_verdicts`."""
