"""The parallelism configuration of a program: the keys of SMP v1, each with its type, default and rules.

Where: `smp.init` reads the keys, first from the job, then from the script's own dict; all other modules use the
resulting `Configuration`. Keys are AWS's, and attributes have the same names: scripts read `smp.state.cfg.fp16`.
Source: sagemaker-python-sdk `doc/api/training/smd_model_parallel_general.rst`; the developer guide's pages on sharded
data parallelism.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clary.train.parallel.keys import integer, key, names_without_effect, number, one_of, read_keys, switch, text
from clary.train.parallel.layout.mesh import PLACEMENTS, Mesh, make_mesh

ALIASES = {"pipeline_parallel_degree": "partitions"}
MEMORY_WEIGHTS = {"speed": 0.2, "memory": 0.8}
PIPELINES = ("interleaved", "simple", "_only_forward")
BACKENDS = ("auto", "nccl", "gloo", "smddp")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """All keys, validated. Keys whose default depends on another key hold the derived value.

    Args:
        undocumented: given keys that begin with an underscore; they are readable as attributes, and have no effect.
    """

    partitions: int = key(1, integer(1))
    microbatches: int = key(1, integer(1))
    active_microbatches: int = key(0, integer(1))  # default: partitions + 2
    pipeline: str = key("interleaved", one_of(*PIPELINES))
    optimize: str = key("memory", one_of(*MEMORY_WEIGHTS))
    placement_strategy: str = key("cluster", one_of(*PLACEMENTS))
    auto_partition: bool = key(True, switch)
    default_partition: int = key(0, integer(0))
    memory_weight: float = key(-1.0, number(0, 1))  # default depends on `optimize`
    ddp: bool = key(False, switch)
    ddp_port: int | None = key(None, integer(0))
    ddp_dist_backend: str = key("auto", one_of(*BACKENDS))
    deterministic_server: bool = key(False, switch)
    offload_activations: bool = key(False, switch)
    activation_loading_horizon: int = key(4, integer(1))
    tensor_parallel_degree: int = key(1, integer(1))
    fp16: bool = key(False, switch)
    fp16_params: bool = key(False, switch)
    bf16: bool = key(False, switch)
    shard_optimizer_state: bool = key(False, switch)
    prescaled_batch: bool = key(False, switch)
    skip_tracing: bool = key(False, switch)
    sharded_data_parallel_degree: int = key(1, integer(1))
    sdp_reduce_bucket_size: int = key(500_000_000, integer(1))  # elements
    sdp_param_persistence_threshold: int = key(1_000_000, integer(0))  # elements
    sdp_max_live_parameters: int = key(1_000_000_000, integer(0))  # elements
    sdp_hierarchical_allgather: bool = key(True, switch)
    sdp_gradient_clipping: float = key(1.0, number(0, float("inf")))
    delayed_parameter_initialization: bool = key(False, switch)
    contiguous: bool = key(True, switch, effect=False)
    horovod: bool = key(False, switch, effect=False)
    xla: bool = key(False, switch, effect=False)
    fork: bool = key(False, switch, effect=False)
    static_mode: bool = key(False, switch, effect=False)
    fast_mode: bool = key(False, switch, effect=False)
    load_partition: bool = key(False, switch, effect=False)
    partition_file: str = key("", text, effect=False)
    checkpoint_attentions: bool = key(False, switch, effect=False)  # used by public scripts, but not documented
    undocumented: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __getattr__(self, name: str) -> Any:
        # Read through `__dict__`: a copy under construction has no fields yet.
        if name in (undocumented := self.__dict__.get("undocumented", {})):
            return undocumented[name]
        raise AttributeError(f"{name} is not a key of model parallelism")

    @property
    def pipeline_parallel_degree(self) -> int:
        """The newer name of `partitions`."""
        return self.partitions

    def mesh(self, size: int) -> Mesh:
        """Return the mesh of `size` ranks for the configured degrees.

        Raises: ValueError naming the rule, if degrees do not divide `size`.
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
        """Return the keys that differ from their defaults but have no effect, for a warning to the user."""
        return names_without_effect(self)


def read_configuration(job: Mapping[str, Any], script: Mapping[str, Any] | None = None) -> Configuration:
    """Read the keys of a job and of its script; if both set a key, the job's value counts.

    Raises: ValueError for an unknown key, a value of another kind, or keys that exclude or require each other; the
        text names the rule.
    """
    given = {**_by_name(script or {}), **_by_name(job)}
    values = read_keys(Configuration, given, "model parallelism", near=ALIASES)
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

    Raises: ValueError if the text is not a JSON object.
    """
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"mp_parameters is {text!r}, which is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"mp_parameters is {text!r}; expected a JSON object")
    return found


def _by_name(given: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the given keys to field names."""
    found: dict[str, Any] = {}
    for given_name, value in given.items():
        name = ALIASES.get(given_name, given_name)
        if name in found and found[name] != value:
            raise ValueError(
                f"{given_name} is {value!r} and {name} is {found[name]!r}: they are two names of the same "
                "key; give only one of them"
            )
        found[name] = value
    return found


def _rules(one: Configuration, given: frozenset[str]) -> list[tuple[bool, str]]:
    """Return the rules between keys: whether each holds, and its text."""
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
