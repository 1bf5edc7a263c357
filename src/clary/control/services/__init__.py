"""AWS operations, one module per family: parsed parameters in, output members out."""
