"""Names of the original's tests that public scripts import."""
