"""How a program wants to be parallel: the keys of SMP v1, each with its type, its default and its rules.

Where: `smp.init` reads them, from the job first and from the script's own dict where the job is silent; all else asks
the `Configuration` that comes out. Keys are AWS's, and so attributes of the same names: scripts read
`smp.state.cfg.fp16`.
Source: sagemaker-python-sdk `doc/api/training/smd_model_parallel_general.rst`; the developer guide's pages on sharded
data parallelism.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from clary.train.parallel.mesh import PLACEMENTS, Mesh, make_mesh

ALIASES = {"pipeline_parallel_degree": "partitions"}
MEMORY_WEIGHTS = {"speed": 0.2, "memory": 0.8}
PIPELINES = ("interleaved", "simple", "_only_forward")
BACKENDS = ("auto", "nccl", "gloo", "smddp")

Reader = Callable[[str, Any], Any]


def _integer(least: int) -> Reader:
    def read(key: str, value: Any) -> int:
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())  # infinity is not
        if isinstance(value, bool) or not is_whole or value < least:
            raise ValueError(f"{key} is {value!r}; expected a whole number, {least} or more")
        return int(value)

    return read


def _switch(key: str, value: Any) -> bool:
    if not isinstance(value, bool | int) or value not in (0, 1):
        raise ValueError(f"{key} is {value!r}; expected true or false")
    return bool(value)


def _one_of(*words: str) -> Reader:
    def read(key: str, value: Any) -> str:
        if value not in words:
            raise ValueError(f"{key} is {value!r}; expected one of {', '.join(words)}")
        return str(value)

    return read


def _number(least: float, most: float) -> Reader:
    def read(key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ValueError(f"{key} is {value!r}; expected a number from {least:g} to {most:g}")
        return float(value)

    return read


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} is {value!r}; expected text")
    return value


def _key(default: Any, read: Reader, *, effect: bool = True) -> Any:
    """Declare one key.

    Args:
        effect: False for keys that are taken for the sake of scripts and change nothing on torch.
    """
    return field(default=default, metadata={"read": read, "effect": effect})


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """All keys, read and checked. Those whose default depends on another key hold what was derived."""

    partitions: int = _key(1, _integer(1))
    microbatches: int = _key(1, _integer(1))
    active_microbatches: int = _key(0, _integer(1))  # partitions + 2
    pipeline: str = _key("interleaved", _one_of(*PIPELINES))
    optimize: str = _key("memory", _one_of(*MEMORY_WEIGHTS))
    placement_strategy: str = _key("cluster", _one_of(*PLACEMENTS))
    auto_partition: bool = _key(True, _switch)
    default_partition: int = _key(0, _integer(0))
    memory_weight: float = _key(-1.0, _number(0, 1))  # by `optimize`
    ddp: bool = _key(False, _switch)
    ddp_port: int | None = _key(None, _integer(0))
    ddp_dist_backend: str = _key("auto", _one_of(*BACKENDS))
    deterministic_server: bool = _key(False, _switch)
    offload_activations: bool = _key(False, _switch)
    activation_loading_horizon: int = _key(4, _integer(1))
    tensor_parallel_degree: int = _key(1, _integer(1))
    fp16: bool = _key(False, _switch)
    fp16_params: bool = _key(False, _switch)
    bf16: bool = _key(False, _switch)
    shard_optimizer_state: bool = _key(False, _switch)
    prescaled_batch: bool = _key(False, _switch)
    skip_tracing: bool = _key(False, _switch)
    sharded_data_parallel_degree: int = _key(1, _integer(1))
    sdp_reduce_bucket_size: int = _key(500_000_000, _integer(1))  # elements
    sdp_param_persistence_threshold: int = _key(1_000_000, _integer(0))  # elements
    sdp_max_live_parameters: int = _key(1_000_000_000, _integer(0))  # elements
    sdp_hierarchical_allgather: bool = _key(True, _switch)
    sdp_gradient_clipping: float = _key(1.0, _number(0, float("inf")))
    delayed_parameter_initialization: bool = _key(False, _switch)
    contiguous: bool = _key(True, _switch, effect=False)
    horovod: bool = _key(False, _switch, effect=False)
    xla: bool = _key(False, _switch, effect=False)
    fork: bool = _key(False, _switch, effect=False)
    static_mode: bool = _key(False, _switch, effect=False)
    fast_mode: bool = _key(False, _switch, effect=False)
    load_partition: bool = _key(False, _switch, effect=False)
    partition_file: str = _key("", _text, effect=False)

    @property
    def pipeline_parallel_degree(self) -> int:
        """The newer name of `partitions`."""
        return self.partitions

    def mesh(self, size: int) -> Mesh:
        """Lay `size` ranks out as configured.

        Raises: ValueError if degrees do not divide them; names the rule.
        """
        mesh = make_mesh(
            size,
            pipeline_degree=self.partitions,
            tensor_degree=self.tensor_parallel_degree,
            placement=self.placement_strategy,
        )
        replicas = size // (self.partitions * self.tensor_parallel_degree)
        if replicas % self.sharded_data_parallel_degree:
            raise ValueError(
                f"sharded_data_parallel_degree is {self.sharded_data_parallel_degree}; it must divide the {replicas} "
                f"ranks that hold the same part of the model, of {mesh}"
            )
        return mesh

    def without_effect(self) -> tuple[str, ...]:
        """Return the keys that differ from their defaults and change nothing, to be told to the user."""
        return tuple(
            one.name for one in fields(self) if not one.metadata["effect"] and getattr(self, one.name) != one.default
        )


def read_configuration(job: Mapping[str, Any], script: Mapping[str, Any] | None = None) -> Configuration:
    """Read the keys of a job and of its script; where both name one, the job's counts.

    Raises: ValueError for a key that is not known, a value that is not of its kind, or keys that exclude each other; it
        says the rule.
    """
    given = {**_by_name(script or {}), **_by_name(job)}
    read = {one.name: one.metadata["read"] for one in fields(Configuration)}
    for key in given:
        if key not in read:
            near = difflib.get_close_matches(key, [*read, *ALIASES], n=1)
            raise ValueError(f"{key} is no key of model parallelism" + (f"; did you mean {near[0]}?" if near else ""))
    values = {key: read[key](key, value) for key, value in given.items()}
    if "active_microbatches" not in values:
        values["active_microbatches"] = values.get("partitions", 1) + 2
    if "memory_weight" not in values:
        values["memory_weight"] = MEMORY_WEIGHTS[values.get("optimize", "memory")]
    configuration = Configuration(**values)
    for holds, rule in _rules(configuration, frozenset(values)):
        if not holds:
            raise ValueError(f"model parallelism: {rule}")
    return configuration


def parse_parameters(text: str) -> dict[str, Any]:
    """Return the keys in a job's hyperparameter `mp_parameters`, as SM_HP_MP_PARAMETERS holds it; {} if it is empty.

    Raises: ValueError if it is no JSON object.
    """
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"mp_parameters is {text!r}, which is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"mp_parameters is {text!r}; expected a JSON object")
    return found


def _by_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys under the names of the fields."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = ALIASES.get(key, key)
        if name in found and found[name] != value:
            raise ValueError(f"{key} is {value!r} and {name} is {found[name]!r}: they are one key, name it once")
        found[name] = value
    return found


def _rules(one: Configuration, given: frozenset[str]) -> list[tuple[bool, str]]:
    """Return what must hold between keys."""
    is_sharded, is_cut = one.sharded_data_parallel_degree > 1, one.tensor_parallel_degree > 1
    return [
        (
            one.auto_partition or "default_partition" in given,
            "auto_partition is false, so default_partition must say where modules go that are not placed",
        ),
        (
            one.default_partition < one.partitions,
            f"default_partition is {one.default_partition}; it must be below partitions, which is {one.partitions}",
        ),
        (not (one.horovod and one.ddp), "horovod and ddp exclude each other"),
        (not (one.fp16 and one.bf16), "fp16 and bf16 exclude each other"),
        (one.ddp or not is_cut, "tensor_parallel_degree above 1 needs ddp"),
        (one.ddp or not one.shard_optimizer_state, "shard_optimizer_state needs ddp"),
        (one.ddp or not is_sharded, "sharded_data_parallel_degree above 1 needs ddp"),
        (one.ddp or not given & {"ddp_port", "ddp_dist_backend"}, "ddp_port and ddp_dist_backend need ddp"),
        (not is_sharded or one.partitions == 1, "sharded_data_parallel_degree above 1 goes with no pipeline"),
        (
            not (is_sharded and one.shard_optimizer_state),
            "sharded_data_parallel_degree above 1 shards optimizer state itself: leave shard_optimizer_state out",
        ),
        (
            not (is_sharded and is_cut) or one.prescaled_batch,
            "sharded_data_parallel_degree and tensor_parallel_degree above 1 together need prescaled_batch",
        ),
    ]
