"""`smp.step` under the module name that scripts import; the attribute of the package stays the decorator."""

from clary.train.parallel.microbatches import StepOutput
from clary.train.parallel.step import step

__all__ = ["StepOutput", "step"]
