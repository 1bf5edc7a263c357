"""Windows of torch.profiler in an unchanged program: requested by a file, begun at a step, written in the background.

Where: `compat/clary_autoload.py` calls `install` when torch has been imported; see `contract/deep_profiles.py` for the
files. Until a window is requested, a step costs one comparison, and a thread checks one folder's modification time.
"""

from clary.train.profiling.recorder import install

__all__ = ["install"]
