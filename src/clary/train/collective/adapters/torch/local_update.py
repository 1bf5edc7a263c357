"""Training that communicates once in many steps: every rank trains by itself, then all ranks take the same values.

    local = LocalUpdates(model, period=50)        # a plain module, not DistributedDataParallel
    for batch in batches:
        loss(model, batch).backward(); optimizer.step(); optimizer.zero_grad()
        local.step()

Every `period` steps the ranks' parameters are averaged (torch.distributed.algorithms.model_averaging), and the
difference between the last agreed parameters and that average is the gradient of an outer optimizer, SGD with
Nesterov's momentum, whose step gives the next agreed parameters. With `outer_lr=1, outer_momentum=0` this is local SGD,
as in torch's PostLocalSGDOptimizer.

It sends fewer bytes by the factor `period`, but changes the training, so compare the loss (docs/benchmarks.md,
`shrink`). The state of the inner optimizer stays each rank's own, and so do buffers.
Source: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, arXiv 2311.08105.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.utils import average_parameters

PERIOD = 50
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9  # the paper's best values


class LocalUpdates:
    """The agreement of a group's ranks on one model. All ranks must construct it, and call `step`, in the same way.

    The constructor gives all ranks the parameters of the group's first rank.

    Args:
        model: trained by the inner optimizer; ranks agree on its parameters that require gradients.
        group: of the ranks that agree; None means all. If the ranks of a host share a DistributedDataParallel, pass a
        group of one rank per host.
        period: steps between agreements.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        group: dist.ProcessGroup | None = None,
        *,
        period: int = PERIOD,
        outer_lr: float = OUTER_LR,
        outer_momentum: float = OUTER_MOMENTUM,
    ) -> None:
        if period < 1:
            raise ValueError(f"LocalUpdates: period must be 1 or more, got {period}")
        self._group = dist.group.WORLD if group is None else group
        self._period = period
        self._num_steps = 0
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        first = dist.get_global_rank(self._group, 0)
        with torch.no_grad():
            for parameter in self._parameters:
                dist.broadcast(parameter.data, src=first, group=self._group)
        self._agreed = [parameter.detach().clone() for parameter in self._parameters]
        self._outer = torch.optim.SGD(self._agreed, lr=outer_lr, momentum=outer_momentum, nesterov=outer_momentum > 0)

    def step(self) -> bool:
        """Count a step of the inner optimizer; agree after every `period` steps. Return whether ranks have agreed."""
        self._num_steps += 1
        if self._num_steps % self._period:
            return False
        self.agree()
        return True

    @torch.no_grad()
    def agree(self) -> None:
        """Agree now, as at the end of training. Every rank's parameters are equal, bit by bit, afterwards."""
        averages = [parameter.detach() for parameter in self._parameters]
        by_type: dict[torch.dtype, list[torch.Tensor]] = {}
        for average in averages:
            by_type.setdefault(average.dtype, []).append(average)
        for same in by_type.values():
            average_parameters(iter(same), self._group)
        for agreed, average in zip(self._agreed, averages, strict=True):
            agreed.grad = agreed - average
        self._outer.step()
        for parameter, agreed in zip(self._parameters, self._agreed, strict=True):
            parameter.copy_(agreed)
            agreed.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save beside the model and the inner optimizer; equal on all ranks after an agreement."""
        return {"agreed": self._agreed, "outer": self._outer.state_dict(), "num_steps": self._num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of a checkpoint."""
        with torch.no_grad():
            for mine, saved in zip(self._agreed, state["agreed"], strict=True):
                mine.copy_(saved)
        self._outer.load_state_dict(state["outer"])
        self._num_steps = state["num_steps"]
