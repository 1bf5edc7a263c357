"""Checks of one host and of its links: measured here, judged in `host_verdicts` and `link_verdicts`."""
