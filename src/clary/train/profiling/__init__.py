"""Windows of torch.profiler in an unchanged program: a file requests them, a step starts them, a thread writes them.

Where: `compat/clary_autoload.py` calls `install` when torch has been imported; see `contract/deep_profiles.py` for the
files. Until a window is requested, a step costs a few simple operations, and a thread polls one folder's modification
time.
"""

from clary.train.profiling.recorder import install

__all__ = ["install"]
