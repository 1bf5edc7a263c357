"""Arguments of `smp.step` and of the functions that it wraps; independent of the framework."""
