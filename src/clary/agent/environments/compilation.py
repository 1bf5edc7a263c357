"""Variables of a job with compiler_config or sagemaker_amp, and the name of its cached compiled code. Pure.

Where: `variables` adds these variables to a program's environment; the user's own variables override them.
`compiled_code` stores files under the name.
Source: SDK 2.257.7 `training_compiler.config` (hyperparameters, the folder of debug mode); torch
`_inductor.runtime.cache_dir_utils`, `_inductor.config` (TORCHINDUCTOR_*); TensorFlow, "XLA: auto-clustering".
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from clary.agent.environments.config_files import run_folder
from clary.contract.launch_plan import Channel, HostPlan, LaunchPlan
from clary.contract.ml_tree import MlTree
from clary.contract.settings import hyperparameters as hps

COMPILED_FOLDER = "compiled"  # below `run_folder`
_DEBUG_FOLDER = "compiler"  # below /opt/ml/output/data, as on SageMaker
_SCHEME = "1"  # increased when the names of kept code must change
_XLA_FLAGS = "--tf_xla_auto_jit=2"  # for GPUs; for CPUs TensorFlow has another flag, which makes it slower


def compiled_folder(tree: MlTree) -> Path:
    """Return the folder of torch's compiled code; never uploaded."""
    return run_folder(tree) / COMPILED_FOLDER


def wants_compiler(plan: LaunchPlan) -> bool:
    """Whether the job requests compiled models."""
    return hps.is_enabled(plan.hyperparameters, hps.COMPILER_ENABLED)


def compilation_variables(plan: LaunchPlan, host: HostPlan, inside: MlTree) -> dict[str, str]:
    """Return the variables that make programs compile models and use mixed precision; empty if the job wants neither.

    Args:
        plan: of the attempt.
        host: the host whose processors the ranks share.
        inside: `/opt/ml` in the program's view.
    """
    variables = {}
    if hps.is_enabled(plan.hyperparameters, hps.MIXED_PRECISION):
        variables[hps.MIXED_PRECISION_VARIABLE] = "1"
    if wants_compiler(plan):
        num_threads = max(1, int(host.resources.num_cpus) // max(1, host.processes_per_host))
        variables |= {
            hps.COMPILE_VARIABLE: "1",
            "TORCHINDUCTOR_CACHE_DIR": str(compiled_folder(inside)),
            "TORCHINDUCTOR_COMPILE_THREADS": str(num_threads),
            "TF_XLA_FLAGS": _XLA_FLAGS,
        }
        if hps.is_enabled(plan.hyperparameters, hps.COMPILER_DEBUG_MODE):
            variables[hps.COMPILE_DEBUG_VARIABLE] = str(inside.output_data / _DEBUG_FOLDER)
    return variables


def compiled_name(plan: LaunchPlan, *, code_digest: str, environment: Path) -> str:
    """Return the name for a job's compiled code: a hash of all inputs that determine the program.

    Only a job with the same name for its compiled code runs the code that this job has compiled. So the name covers
    every possible source of code: source folder, environment, command, variables, data, checkpoints, and
    hyperparameters with text values. It does not cover hyperparameters that are numbers, or values that always differ
    between jobs.

    Args:
        plan: of the attempt.
        code_digest: of the job's source folder.
        environment: root of the Python environment that the program runs in.
    """
    platform = hps.TOOLKIT_KEYS - {hps.PROGRAM}
    texts = {
        name: text.replace(plan.job_name, "JOB")
        for name, text in plan.hyperparameters.items()
        if name not in platform and not isinstance(hps.parse_value(text), int | float | None)
    }
    document = {
        "scheme": _SCHEME,
        "isolation": plan.isolation.value,
        "python": plan.environment.python,
        "environment": str(environment),
        "code": code_digest,
        "command": list(plan.command or ()),
        "variables": dict(plan.user_environment),
        "hyperparameters": texts,
        "channels": sorted(_place_of(channel) for channel in plan.channels),
        "checkpoints": plan.checkpoint_s3_uri or "",
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:32]


def _place_of(channel: Channel) -> list[str]:
    return [
        channel.name,
        channel.s3_uri or "",
        channel.file_system_id or "",
        channel.file_system_path or "",
        channel.file_system_folder,
    ]
