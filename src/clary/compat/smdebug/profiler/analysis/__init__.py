"""Not supported: the import raises an error."""

from .. import MISSING  # noqa: TID252 - this package has two full names

raise ImportError(f"{__name__}: {MISSING}")
