"""`smp.step` under the module name that scripts import; the package's attribute `step` stays the decorator."""

from clary.train.parallel.microbatches import StepOutput
from clary.train.parallel.step import step

__all__ = ["StepOutput", "step"]
