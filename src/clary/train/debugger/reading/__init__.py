"""What was saved, read again: files and objects, steps, tensors, trials."""
