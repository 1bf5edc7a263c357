"""Listings of the embedded store in S3's order."""
