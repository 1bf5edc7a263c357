"""Packages that a user's train.py may import: collectives, libraries built on them, and checkpoints."""

import sys

_FIRST_VERSION = (3, 10)  # first supported Python

if sys.version_info < _FIRST_VERSION:
    raise ImportError(
        "clary.train needs Python 3.10 or newer, this is "
        + sys.version.split()[0]
        + ": choose a newer interpreter for the job's environment in settings.toml."
    )
