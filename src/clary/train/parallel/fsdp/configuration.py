"""The FSDP configuration of a program: the keys of SMP v2, each with its type, default and rules.

Where: `session.init` reads them from the job, from the script, and from the script's assignments to `tsm.state`, in
order of precedence; other modules use the resulting `FsdpConfiguration`. This module does not import torch.
Source: SageMaker developer guide, "SageMaker model parallel library v2 reference".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clary.train.parallel.keys import integer, key, names_without_effect, read_keys, switch


@dataclass(frozen=True, kw_only=True)
class FsdpConfiguration:
    """All keys, validated.

    Args:
        hybrid_shard_degree: number of ranks over which a parameter is sharded; 0 keeps the script's FSDP arguments, 1
            shards nothing.
        sm_activation_offloading: whether `offload_wrapper` uses our engine instead of torch's.
        activation_loading_horizon: number of layers whose inputs may be loaded before backward needs them.
        fsdp_cache_flush_warnings: without effect; nothing is logged.
        allow_empty_shards: without effect; FSDP always allows empty shards of small parameters.
        random_seed: seed of the cut layers; unused if no layer is cut.
        undocumented: given keys that begin with an underscore; without effect.
    """

    hybrid_shard_degree: int = key(0, integer(0))
    sm_activation_offloading: bool = key(True, switch)
    activation_loading_horizon: int = key(2, integer(1))
    fsdp_cache_flush_warnings: bool = key(True, switch, effect=False)
    allow_empty_shards: bool = key(False, switch, effect=False)
    tensor_parallel_degree: int = key(1, integer(1))
    context_parallel_degree: int = key(1, integer(1))
    expert_parallel_degree: int = key(1, integer(1))
    random_seed: int = key(12345, integer(0))
    undocumented: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def without_effect(self) -> tuple[str, ...]:
        """Return the keys without effect that differ from their defaults, for a warning to the user."""
        return names_without_effect(self)

    def check_size(self, size: int) -> None:
        """Check the degrees against a number of ranks.

        Raises: ValueError naming the broken rule.
        """
        tensor, hybrid, context = self.tensor_parallel_degree, self.hybrid_shard_degree, self.context_parallel_degree
        if size % tensor:
            raise ValueError(f"tensor_parallel_degree is {tensor}; it must divide the {size} ranks")
        num_data = size // tensor
        if hybrid > num_data or (hybrid and num_data % hybrid):
            raise ValueError(
                f"hybrid_shard_degree is {hybrid}; it must divide {num_data}, the number of all {size} ranks "
                f"divided by tensor_parallel_degree {tensor}"
            )
        if num_data % context:
            raise ValueError(
                f"context_parallel_degree is {context}; it must divide {num_data}, the number of all {size} "
                f"ranks divided by tensor_parallel_degree {tensor}"
            )
        if num_data % self.expert_parallel_degree:
            raise ValueError(
                f"expert_parallel_degree is {self.expert_parallel_degree}; it must divide {num_data} ranks"
            )


def read_fsdp_configuration(
    job: Mapping[str, Any], script: Mapping[str, Any] | None = None, assigned: Mapping[str, Any] | None = None
) -> FsdpConfiguration:
    """Read the keys of a job, its script and the script's assignments; in a conflict the first of these wins.

    Args:
        job: keys that the job configures.
        script: keys that the script gave to `init`.
        assigned: keys that the script assigned to `tsm.state` before `init`.

    Raises: ValueError naming the rule, for an unknown key, a value of the wrong kind, or keys that do not go together.
    """
    given = {**(assigned or {}), **(script or {}), **job}
    one = FsdpConfiguration(**read_keys(FsdpConfiguration, given, "torch.sagemaker"))
    rules = [
        (
            one.expert_parallel_degree == 1 or one.tensor_parallel_degree == 1,
            "expert_parallel_degree and tensor_parallel_degree above 1 exclude each other",
        ),
        (
            one.hybrid_shard_degree == 0 or one.hybrid_shard_degree % one.context_parallel_degree == 0,
            f"context_parallel_degree is {one.context_parallel_degree}; it must divide hybrid_shard_degree, which is "
            f"{one.hybrid_shard_degree}",
        ),
    ]
    for holds, rule in rules:
        if not holds:
            raise ValueError(f"torch.sagemaker: {rule}")
    return one


def read_script(config: Any) -> dict[str, Any]:
    """Return the keys in the script's argument of `init`: None, a dict, or the path of a JSON file.

    Raises: TypeError for another type; ValueError if the file holds no JSON object; OSError.
    """
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return dict(config)
    if not isinstance(config, str | Path):
        raise TypeError(f"tsm.init takes None, a dict or the path of a JSON file; got {type(config).__name__}")
    text = Path(config).read_text(encoding="utf-8")
    return _parse(text, f"{config}")


def read_job(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the keys in a job's hyperparameter `mp_parameters`, as SM_HP_MP_PARAMETERS holds it.

    Raises: ValueError if the value is not a JSON object.
    """
    text = environ.get("SM_HP_MP_PARAMETERS", "")
    return _parse(text, "mp_parameters") if text.strip() else {}


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{source} holds {text!r}, which is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{source} holds {text!r}; expected a JSON object")
    return found
