"""`import torch.sagemaker as tsm`: SMP v2 under the name that users' scripts import.

`clary_autoload` registers the name when torch is imported; the code is in `clary.train.parallel.fsdp`. In Python
versions that `clary.train` does not support, the import raises an error.
"""

import sys

_FIRST_VERSION = (3, 10)  # first Python version that clary.train supports

if sys.version_info < _FIRST_VERSION:
    raise ImportError(
        "torch.sagemaker of Clary needs Python 3.10 or newer, this is "
        + sys.version.split()[0]
        + ": choose a newer interpreter for the job's environment in settings.toml."
    )

from clary.train.parallel.fsdp.session import init  # noqa: E402 - in a Python that can read it
from clary.train.parallel.fsdp.state import is_initialized, state  # noqa: E402
from clary.train.parallel.fsdp.training import transform  # noqa: E402

__version__ = "2.8.0"  # the release of SMP whose interface this package has

__all__ = ["init", "is_initialized", "state", "transform"]
