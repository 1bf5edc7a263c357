"""Names that public scripts import, and no public script calls."""

from . import verify
from .verify import dump_model

__all__ = ["dump_model", "verify"]
