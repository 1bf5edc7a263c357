"""Detection of changes to a model's parameters that a script makes after `DistributedModel` has wrapped the model.

Where: `DistributedModel` checks for such changes before each step, and before each forward pass outside of a step. It
does not average gradients of unknown parameters, so replicas would diverge.
"""

from __future__ import annotations

import torch

from clary.train.parallel.errors import ParallelError


class Watched:
    """The parameters of a model at the time when modules got their ranks.

    Args:
        model: the whole wrapped model, on every rank.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._known = {id(one): one for one in model.parameters()}  # keeps parameters alive, so that no id is reused
        self._trained = {key for key, one in self._known.items() if one.requires_grad}

    def newly_trained(self) -> list[str]:
        """Return the names of parameters that were frozen at the last call and now require gradients.

        Raises: ParallelError for trained parameters that the model did not have when modules got their ranks.
        """
        found: list[str] = []
        strange: list[str] = []
        for name, one in self._model.named_parameters():
            if one.requires_grad and id(one) not in self._trained:
                (found if id(one) in self._known else strange).append(name)
        if strange:
            raise ParallelError(
                f"{strange[0]}{f' and {len(strange) - 1} more' if len(strange) > 1 else ''} came into the model after "
                "smp.DistributedModel had wrapped it: no other rank would know of the new gradients. Add and replace "
                "modules and parameters before model = smp.DistributedModel(model)"
            )
        self._trained.update(id(one) for one in self._known.values() if one.requires_grad)
        return found


def refuse_newly_trained(names: list[str], why: str) -> None:
    """Refuse newly trained parameters, for callers that cannot track their gradients.

    Args:
        why: reason for the error text; its subject is the component that cannot track the gradients.

    Raises: ParallelError naming the first name, if there are names.
    """
    if names:
        raise ParallelError(
            f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''} began to need gradients after "
            f"smp.DistributedModel had wrapped the model: {why}. Set requires_grad before that; to keep a parameter "
            "frozen until later, put it into a group of the optimizer with lr=0"
        )
