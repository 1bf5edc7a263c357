"""Names that public scripts import but never call."""

from . import verify
from .verify import dump_model

__all__ = ["dump_model", "verify"]
