"""AWS operations, one module per family: each handler maps parsed parameters to output members."""
