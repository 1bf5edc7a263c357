"""The time of each training step by part: data, forward, backward, communication, optimizer. Scripts stay unchanged.

Where: `compat.clary_autoload` calls `torch_hooks.install` at the end of `import torch` in every job's programs. Rows go
to the host's agent through a small file per process (`contract.step_records`). `CLARY_STEPS=0` turns the measurement
off.
"""
