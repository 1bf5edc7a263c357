"""Reading of saved tensors: files and objects, steps, tensors, trials."""
