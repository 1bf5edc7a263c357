"""The permissions of callers of S3 requests, and the markers of listings that are filtered for them."""
