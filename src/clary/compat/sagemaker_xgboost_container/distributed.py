"""Training on several hosts."""

from clary.train.boosting.script_mode import rabit_run

__all__ = ["rabit_run"]
