"""The launcher that a job requests, with refusals and warnings.

Where: the service refuses and warns when a job is created, and plans the processes per host; agents choose the
launcher. Pure. `distribution=` of the SDK reaches the service only as hyperparameters. The SDK drops unknown keys
(`pytorchx`, a misspelt `smdistributed_dataparallel`). So the service cannot see such a key; it warns if a job has
several hosts and no distribution.
Source: sagemaker-pytorch-training 3.0.0 `training.train` (order of choice), sagemaker-training 5.1.4 `runner`,
`environment`; SDK 2.257.7 `fw_utils` and `training_compiler.config` for refusals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clary.base.string_enum import StrEnum
from clary.contract.settings import hyperparameters as hps
from clary.contract.settings.built_in_algorithms import is_xgboost
from clary.contract.settings.entry_points import EntryKind, entry_kind, name_problem
from clary.contract.settings.mpi_options import MpiOptions, parse_mpi_options
from clary.contract.settings.named_places import code_source_problem

MPI_ENABLED = "sagemaker_mpi_enabled"
MPI_PROCESSES_PER_HOST = "sagemaker_mpi_num_of_processes_per_host"
MPI_CUSTOM_OPTIONS = "sagemaker_mpi_custom_mpi_options"
PYTORCH_DDP_ENABLED = "sagemaker_pytorch_ddp_enabled"
TORCH_DISTRIBUTED_ENABLED = "sagemaker_torch_distributed_enabled"
DATAPARALLEL_ENABLED = "sagemaker_distributed_dataparallel_enabled"
DATAPARALLEL_CUSTOM_OPTIONS = "sagemaker_distributed_dataparallel_custom_mpi_options"
XLA_ENABLED = "sagemaker_pytorch_xla_multi_worker_enabled"
PARAMETER_SERVER_ENABLED = "sagemaker_parameter_server_enabled"
MULTI_WORKER_MIRRORED_ENABLED = "sagemaker_multi_worker_mirrored_strategy_enabled"
INSTANCE_GROUPS = "sagemaker_distribution_instance_groups"

# Types whose names make AWS's launchers set FI_PROVIDER=efa (sagemaker-training 5.1.4, SM_EFA_NCCL_INSTANCES).
EFA_INSTANCE_TYPES = frozenset(
    {
        "ml.g4dn.8xlarge",
        "ml.g4dn.12xlarge",
        "ml.g5.48xlarge",
        "ml.p3dn.24xlarge",
        "ml.p4d.24xlarge",
        "ml.p4de.24xlarge",
        "ml.p5.48xlarge",
        "ml.p5e.48xlarge",
        "ml.trn1.32xlarge",
        "ml.p6e-gb200.36xlarge",
    }
)

XLA_REFUSAL = (
    "distribution 'pytorchxla' is not supported: it needs the torch_xla of SageMaker Training Compiler's images, which "
    "exists nowhere else; use {'torch_distributed': {'enabled': True}}"
)

# Keys in guides that no SDK supports, and the correct form of each key.
MEANT_BY_GUIDES = (
    "'smdistributed_dataparallel' is {'smdistributed': {'dataparallel': {'enabled': True}}}, "
    "'smdistributed_modelparallel' is {'smdistributed': {'modelparallel': {'enabled': True, 'parameters': {...}}}, "
    "'mpi': {'enabled': True, 'processes_per_host': ...}}, 'pytorchx' is {'torch_distributed': {'enabled': True}}"
)


class ServerStyle(StrEnum):
    """How the images of a framework start parameter servers."""

    TENSORFLOW = "tensorflow"  # a server and a worker on every host, except with a single host
    MXNET = "mxnet"  # as TENSORFLOW, with a scheduler
    NONE = "none"  # every host runs the program alone: PyTorch


class DistributionKind(StrEnum):
    """Launcher of a job's ranks."""

    PLAIN = "plain"  # the program once on every host, without ranks
    TORCH_DISTRIBUTED = "torch_distributed"  # torchrun
    PYTORCHDDP_OR_SMDDP = "pytorchddp_or_smddp"  # requests for PyTorch DDP and SMDDP are identical
    MPI = "mpi"
    MODELPARALLEL = "modelparallel"  # mpi with mp_parameters: SMP v1
    XLA = "xla"
    PARAMETER_SERVER = "parameter_server"
    MULTI_WORKER_MIRRORED = "multi_worker_mirrored"


# The first enabled switch counts. mpi becomes modelparallel if mp_parameters are set, too.
LAUNCH_ORDER = (
    (MPI_ENABLED, DistributionKind.MPI),
    (PYTORCH_DDP_ENABLED, DistributionKind.PYTORCHDDP_OR_SMDDP),
    (TORCH_DISTRIBUTED_ENABLED, DistributionKind.TORCH_DISTRIBUTED),
    (DATAPARALLEL_ENABLED, DistributionKind.PYTORCHDDP_OR_SMDDP),
    (XLA_ENABLED, DistributionKind.XLA),
    (PARAMETER_SERVER_ENABLED, DistributionKind.PARAMETER_SERVER),
    (MULTI_WORKER_MIRRORED_ENABLED, DistributionKind.MULTI_WORKER_MIRRORED),
)

# Kinds with one process on each host, for any number of GPUs.
_ONE_PROCESS_A_HOST = frozenset(
    {DistributionKind.PLAIN, DistributionKind.PARAMETER_SERVER, DistributionKind.MULTI_WORKER_MIRRORED}
)


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Distribution of a job, by its hyperparameters."""

    kind: DistributionKind
    processes_per_host: int | None = None  # number as requested; None: one process for each GPU
    custom_mpi_options: str = ""
    instance_groups: tuple[str, ...] | None = None  # instance groups that take part; None: all groups
    mp_parameters: Mapping[str, Any] | None = field(default=None)

    @property
    def mpi_options(self) -> MpiOptions:
        """The custom options, parsed."""
        return parse_mpi_options(self.custom_mpi_options)

    @property
    def has_ranks(self) -> bool:
        """Whether a host runs one process for each GPU, or the requested number of processes; otherwise it runs one."""
        return self.kind not in _ONE_PROCESS_A_HOST

    def includes(self, instance_group: str) -> bool:
        """Whether hosts of `instance_group` take part; other hosts run the program without a launcher."""
        return self.instance_groups is None or instance_group in self.instance_groups


def read_distribution(hyperparameters: Mapping[str, str]) -> Distribution:
    """Return the distribution that `hyperparameters` request; `refusals` reports invalid values."""
    kind = next((kind for name, kind in LAUNCH_ORDER if hps.is_enabled(hyperparameters, name)), DistributionKind.PLAIN)
    mp_parameters = hps.model_parallel_parameters(hyperparameters)
    if kind is DistributionKind.MPI and mp_parameters is not None:
        kind = DistributionKind.MODELPARALLEL
    is_smddp = kind is DistributionKind.PYTORCHDDP_OR_SMDDP
    options = hps.platform_text(hyperparameters, DATAPARALLEL_CUSTOM_OPTIONS if is_smddp else MPI_CUSTOM_OPTIONS)
    groups = hps.parse_value(hyperparameters.get(INSTANCE_GROUPS, "null"))
    return Distribution(
        kind=kind,
        processes_per_host=_positive_int(hyperparameters),
        custom_mpi_options=options or "",
        instance_groups=tuple(str(group) for group in groups) if isinstance(groups, list) else None,
        mp_parameters=mp_parameters,
    )


def refusals(
    hyperparameters: Mapping[str, str],
    *,
    environment: Mapping[str, str] | None = None,
    has_command: bool = False,
    instance_groups: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Return a sentence for each reason to refuse a job; a job without such a reason can be launched.

    Args:
        hyperparameters: as the request gave them.
        environment: the request's Environment, which may name the program; None: it is empty.
        has_command: whether ContainerEntrypoint names the program; hyperparameters then choose no launcher.
        instance_groups: names of the job's groups; None: unknown and not checked.
    """
    reasons = list(hps.unusable(hyperparameters))
    if has_command:
        return tuple(reasons)
    distribution = read_distribution(hyperparameters)
    has_compiler = hps.is_enabled(hyperparameters, hps.COMPILER_ENABLED)
    has_xla = hps.is_enabled(hyperparameters, XLA_ENABLED)
    is_smp = hps.model_parallel_parameters(hyperparameters) is not None
    if has_compiler and (is_smp or distribution.kind is DistributionKind.PYTORCHDDP_OR_SMDDP):
        reasons.append(
            "SageMaker distributed training configuration is currently not compatible with SageMaker Training "
            "Compiler: take away either 'smdistributed' from distribution or compiler_config"
        )
    if has_compiler and INSTANCE_GROUPS in hyperparameters:
        reasons.append("SageMaker Training Compiler currently does not support instance groups")
    if has_xla and not has_compiler:
        reasons.append(
            "distribution 'pytorchxla' is only supported with SageMaker Training Compiler, and compiler_config is not "
            "set; use {'torch_distributed': {'enabled': True}}"
        )
    elif distribution.kind is DistributionKind.XLA:
        reasons.append(XLA_REFUSAL)
    reasons += [f"custom_mpi_options: {problem}" for problem in distribution.mpi_options.problems]
    reasons += _value_refusals(hyperparameters, distribution, instance_groups)
    reasons += _program_refusals(hps.named_program(hyperparameters, environment or {}), distribution)
    reasons += _source_refusals(hyperparameters)
    return tuple(reasons)


def server_style(image: str) -> ServerStyle:
    """Return how the image with this name starts parameter servers; TensorFlow's way if it names no framework."""
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    if "mxnet" in name:
        return ServerStyle.MXNET
    is_torch = "torch" in name or name == "smdistributed-modelparallel"
    return ServerStyle.NONE if is_torch else ServerStyle.TENSORFLOW


def warnings(
    hyperparameters: Mapping[str, str],
    *,
    num_hosts: int,
    environment: Mapping[str, str] | None = None,
    image: str = "",
    has_command: bool = False,
    instance_types: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return warnings, for the log and `describe`, on settings with an effect that a user may not expect.

    Args:
        hyperparameters: hyperparameters of the request, as text.
        num_hosts: number of hosts of the job.
        environment: the request's Environment, which may name another program; None: it is empty.
        image: URI of the image, which may name TensorFlow or PyTorch.
        has_command: whether the container has a command of its own, to which distribution does not apply.
        instance_types: instance types of the request; a type with EFA causes a warning.
    """
    found = _model_warnings(hyperparameters, image)
    if has_command:
        return tuple(found)
    found += _program_warnings(hyperparameters, environment or {})
    distribution = read_distribution(hyperparameters)
    # XGBoost's algorithm divides the work among the hosts itself.
    joins_itself = is_xgboost(image) and hps.named_program(hyperparameters, environment or {}) is None
    if distribution.kind is DistributionKind.PLAIN and hps.model_parallel_parameters(hyperparameters) is not None:
        found.append(
            "mp_parameters are set, but neither mpi nor torch_distributed is enabled: the program runs once on each "
            "host without ranks, as on SageMaker; add 'mpi': {'enabled': True, ...} to distribution"
        )
    elif distribution.kind is DistributionKind.PLAIN and num_hosts > 1 and not joins_itself:
        found.append(
            f"{num_hosts} hosts and no distribution: each host runs the same program alone and knows of the others "
            "only by SM_HOSTS. If you did set distribution, its key is misspelt: the SDK drops unknown keys without a "
            f"warning. {MEANT_BY_GUIDES}"
        )
    # on PyTorch, the hosts report that PyTorch has no parameter servers
    is_tensorflow = server_style(image) is ServerStyle.TENSORFLOW
    if distribution.kind is DistributionKind.PARAMETER_SERVER and num_hosts == 1 and is_tensorflow:
        found.append(
            "parameter_server with one host: the program of TensorFlow runs alone, without TF_CONFIG, as on SageMaker"
        )
    efa_types = sorted(EFA_INSTANCE_TYPES.intersection(instance_types))
    if efa_types and distribution.has_ranks:
        found.append(
            f"{', '.join(efa_types)}: on SageMaker this type has EFA and FI_PROVIDER=efa is set; here ranks talk TCP, "
            "and no FI_* variable is set"
        )
    return tuple(found)


def _program_warnings(hyperparameters: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Return a warning if two places name different programs."""
    program = hps.named_program(hyperparameters, environment)
    other = hps.platform_text(hyperparameters, hps.PROGRAM)
    if program is None or other is None or other == program.name:
        return []
    return [
        f"{program.named_by} is {program.name!r} and wins over hyperparameter {hps.PROGRAM} {other!r}, as on SageMaker"
    ]


def _model_warnings(hyperparameters: Mapping[str, str], image: str) -> list[str]:
    """Return warnings on the compilation and the precision of a program's models."""
    found = []
    style = server_style(image)
    if hps.is_enabled(hyperparameters, hps.COMPILER_ENABLED):
        if style is ServerStyle.MXNET:
            found.append("compiler_config has no effect: there is no compiler for MXNet here")
        elif "tensorflow" in image:
            found.append(
                "compiler_config: SageMaker Training Compiler exists in Amazon's images only; here TensorFlow compiles "
                "operations on GPUs with XLA (TF_XLA_FLAGS=--tf_xla_auto_jit=2). On hosts without a GPU it has no "
                "effect, because XLA is slower there; jit_compile in the program works on every host"
            )
        else:
            found.append(
                "compiler_config: SageMaker Training Compiler exists in Amazon's images only; here models of PyTorch "
                "are compiled by torch.compile (Inductor), and TensorFlow compiles operations on GPUs with XLA. The "
                "log says for each model of PyTorch whether it was compiled, or why not"
            )
    if hps.is_enabled(hyperparameters, hps.MIXED_PRECISION):
        if not any(name in image for name in ("tensorflow", "mxnet")):
            found.append(
                "sagemaker_amp: models of PyTorch are trained under autocast, in bfloat16 where the device has it; "
                "evaluation is not changed. The log says for each model what was done"
            )
        else:
            found.append("sagemaker_amp has no effect on TensorFlow and MXNet: it is for models of PyTorch")
    return found


def _positive_int(hyperparameters: Mapping[str, str]) -> int | None:
    text = hps.platform_text(hyperparameters, MPI_PROCESSES_PER_HOST)
    return int(text) if text is not None and text.isascii() and text.isdecimal() and int(text) > 0 else None


def _value_refusals(
    hyperparameters: Mapping[str, str], distribution: Distribution, instance_groups: Sequence[str] | None
) -> list[str]:
    reasons = []
    text = hps.platform_text(hyperparameters, MPI_PROCESSES_PER_HOST)
    if text is not None and distribution.processes_per_host is None:
        reasons.append(f"{MPI_PROCESSES_PER_HOST}: expected a whole number above 0, got {text!r}")
    if hps.MP_PARAMETERS in hyperparameters and not isinstance(
        hps.parse_value(hyperparameters[hps.MP_PARAMETERS]), dict
    ):
        reasons.append(f"{hps.MP_PARAMETERS}: expected a JSON object, got {hyperparameters[hps.MP_PARAMETERS][:80]!r}")
    if INSTANCE_GROUPS in hyperparameters and distribution.instance_groups is None:
        reasons.append(f"{INSTANCE_GROUPS}: expected a JSON list, got {hyperparameters[INSTANCE_GROUPS][:80]!r}")
    if instance_groups is not None:
        unknown = [group for group in distribution.instance_groups or () if group not in instance_groups]
        if unknown:
            reasons.append(
                f"{INSTANCE_GROUPS} names {unknown[0]!r}, but the job has only the groups {', '.join(instance_groups)}"
            )
    return reasons


def _source_refusals(hyperparameters: Mapping[str, str]) -> list[str]:
    source = hps.platform_text(hyperparameters, hps.SUBMIT_DIRECTORY)
    problem = None if source is None else code_source_problem(source)
    return [] if problem is None else [problem]


def _program_refusals(program: hps.NamedProgram | None, distribution: Distribution) -> list[str]:
    if program is None:
        return []
    problem = name_problem(program.name)
    if problem is not None:
        return [f"{program.named_by}: {problem}"]
    is_torchrun = distribution.kind is DistributionKind.TORCH_DISTRIBUTED
    if is_torchrun and entry_kind(program.name, has_setup=False) is not EntryKind.SCRIPT:
        return [
            f"{program.named_by}: torch_distributed starts Python scripts only, got {program.name!r}; give a .py file"
        ]
    return []
