"""What a hook takes from a running model, and how it is written."""
