"""Rules over saved tensors, run beside the program; see `rule_processes`."""
