"""Rules that evaluate saved tensors while the program runs; see `rule_processes`."""
