"""Registers the backend `smddp` with torch.distributed at import. Scripts also import `torch` from this module.

Source: SageMaker developer guide, "Use the SMDDP library in your PyTorch training script".
"""

import torch

from clary.train.collective.adapters.torch import registration

__all__ = ["torch"]

registration.register()
