"""Not supported: the import raises an error."""

from . import MISSING

raise ImportError(f"{__name__}: {MISSING}")
