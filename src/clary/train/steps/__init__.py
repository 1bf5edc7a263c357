"""Where each training step's time goes, found with no change to the script: data, forward, backward, communication,
optimizer.

Where: `compat.clary_autoload` calls `torch_hooks.install` at the end of `import torch` in every job's programs. Rows go
to the host's agent through a small file a process (`contract.step_records`). `CLARY_STEPS=0` turns it off.
"""
