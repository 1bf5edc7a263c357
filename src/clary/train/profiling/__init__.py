"""Windows of torch.profiler in a rank that knows nothing of them: asked for by a file, begun at a step, written aside.

Where: `compat/clary_autoload.py` calls `install` when torch has been imported; see `contract/deep_profiles.py` for the
files. Until a window is asked for, a step costs a comparison and a thread looks at one folder's time a second.
"""

from clary.train.profiling.recorder import install

__all__ = ["install"]
