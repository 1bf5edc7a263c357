"""`MoEConfig`, a script's configuration of a mixture of experts. This module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BALANCINGS = ("sinkhorn", "balanced", "aux_loss", "none")


@dataclass(frozen=True)
class MoEConfig:
    """Configuration of spread experts and of load balancing. Evaluation uses the model's own routing.

    Args:
        smp_moe: False keeps the model's own layers; invalid with expert_parallel_degree above 1.
        random_seed: seed of `global_token_shuffle`, and of experts' initial values in delayed initialisation; each rank
            adds its expert parallel rank.
        moe_load_balancing: "none" is the model's own routing without an added loss. "aux_loss" adds a loss that is
            lowest if all experts get the same share of tokens. "sinkhorn" chooses experts by scores that are scaled
            until all experts are in equal demand; "balanced" lets no expert accept more than its share of tokens,
            rounded up, and tokens that too few experts accept come on top.
            In each case the chosen experts' weights come from the router's scores. See `routing`.
        global_token_shuffle: whether tokens are mixed over the ranks of a group before they are routed, so that
            balancing sees the batches of many ranks; the result keeps the order of tokens.
        moe_all_to_all_dispatcher: whether a token is sent to the ranks of its experts alone; False sends all tokens to
            all ranks of the group.
        moe_aux_loss_coeff: factor of the loss of "aux_loss"; 0 adds no such loss.
        moe_z_loss_coeff: factor of a loss that keeps the router's scores small; unused with "none"; 0 adds no such
            loss.
        use_cpu_initialization: without effect: weights are initialised where the model lies.

    Raises: ValueError for an unknown balancing, or a negative coefficient.
    Source: SageMaker developer guide, "SageMaker model parallel library v2 reference".
    """

    smp_moe: bool = True
    random_seed: int = 12345
    moe_load_balancing: str = "sinkhorn"
    global_token_shuffle: bool = False
    moe_all_to_all_dispatcher: bool = True
    moe_aux_loss_coeff: float = 0.001
    moe_z_loss_coeff: float = 0.001
    use_cpu_initialization: bool = False

    def __post_init__(self) -> None:
        if self.moe_load_balancing not in BALANCINGS:
            raise ValueError(
                f"MoEConfig: moe_load_balancing is {self.moe_load_balancing!r}; expected one of {', '.join(BALANCINGS)}"
            )
        for name in ("moe_aux_loss_coeff", "moe_z_loss_coeff"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"MoEConfig: {name} is {getattr(self, name)!r}; expected a number, 0 or more")


def read_moe_config(given: Any) -> MoEConfig:
    """Convert `config` of `tsm.transform` (MoEConfig, dict of its fields, or None for defaults) to a MoEConfig.

    Raises: TypeError for another type or an unknown field; ValueError as `MoEConfig`.
    """
    if given is None:
        return MoEConfig()
    if isinstance(given, MoEConfig):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(f"config of tsm.transform is a {type(given).__name__}; expected a MoEConfig or a dict")
    unknown = sorted(set(given) - set(MoEConfig.__dataclass_fields__))
    if unknown:
        raise TypeError(f"config of tsm.transform: {', '.join(unknown)} is no field of MoEConfig")
    return MoEConfig(**given)
