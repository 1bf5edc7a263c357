"""What public scripts import of the original's tests, for torch."""
