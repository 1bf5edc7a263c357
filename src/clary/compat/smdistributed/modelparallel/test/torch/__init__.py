"""Names of the original's tests for torch that public scripts import."""
