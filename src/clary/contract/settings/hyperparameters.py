r"""Hyperparameters: two dialects of values, the platform's keys, and the command line that scripts parse.

Where: the service reads the platform's keys when it validates a request and makes a launch plan; agents turn the user's
keys into SM_HP_* variables and arguments of the program. The strings themselves are passed on unchanged: this module
parses only copies.

Two dialects share one rule, "JSON if it parses, else the string itself": framework estimators of SDK v2 encode each
value as JSON (`"\"abc\""`, `"true"`), generic estimators and SDK v3 send `str(value)` (`"abc"`, `"True"`).
Source: sagemaker-training 5.1.4, `environment.read_hyperparameters`, `mapping.to_cmd_args`, `params`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clary.contract.ml_tree import OPT_ML

PLATFORM_PREFIX = "sagemaker_"

PROGRAM = "sagemaker_program"
PROGRAM_VARIABLE = "SAGEMAKER_PROGRAM"  # variable of a request or an image; AWS's toolkit prefers it to PROGRAM
SUBMIT_DIRECTORY = "sagemaker_submit_directory"
REGION = "sagemaker_region"
JOB_NAME = "sagemaker_job_name"
LOG_LEVEL = "sagemaker_container_log_level"
MP_PARAMETERS = "mp_parameters"
TUNING_OBJECTIVE = "_tuning_objective_metric"  # the tuning job adds it to the hyperparameters of its trials
MODEL_DIR = "model_dir"  # of scripts for TensorFlow
CUDA_ON_CPU = "sagemaker_clary_cuda_on_cpu"  # Clary's own key; its prefix makes toolkits hide it from the program
CUDA_ON_CPU_VARIABLE = "CLARY_CUDA_ON_CPU"  # program variable that `clary.compat.clary_cuda_on_cpu` reads
MIXED_PRECISION = "sagemaker_amp"  # Clary's own: training runs under autocast without a change of the script
HOST_SHARE = "sagemaker_clary_host_share"  # Clary's own: fraction of each host that the job gets
COMPILER_ENABLED = "sagemaker_training_compiler_enabled"  # compiler_config of SDK v2
COMPILER_DEBUG_MODE = "sagemaker_training_compiler_debug_mode"
# Variables in a program's environment that `clary.train.compilation` reads.
MIXED_PRECISION_VARIABLE = "CLARY_AMP"
COMPILE_VARIABLE = "CLARY_COMPILE"
COMPILE_DEBUG_VARIABLE = "CLARY_COMPILE_DEBUG"  # folder for the output of torch.compile

LEAST_HOST_SHARE = 0.01  # the kernel's smallest limit of processor time

# Keys that toolkits consume themselves. Every other `sagemaker_*` key is a framework parameter (a launcher's setting),
# and every other key is the user's.
TOOLKIT_KEYS = frozenset(
    {
        PROGRAM,
        SUBMIT_DIRECTORY,
        REGION,
        JOB_NAME,
        LOG_LEVEL,
        "sagemaker_enable_cloudwatch_metrics",
        "sagemaker_s3_output",
        "default_user_module_name",
        TUNING_OBJECTIVE,
    }
)


@dataclass(frozen=True, kw_only=True)
class NamedProgram:
    """The entry point that a job names, and where it names it."""

    name: str
    named_by: str  # PROGRAM, or "Environment's SAGEMAKER_PROGRAM"


def parse_value(text: str) -> Any:
    """Return the value of `text` as JSON, or `text` itself if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # numbers with thousands of digits and very deep lists stay strings
        return text


def is_platform_key(name: str) -> bool:
    """Whether `name` belongs to the platform and is hidden from the user's program."""
    return name in TOOLKIT_KEYS or name.startswith(PLATFORM_PREFIX)


def user_values(hyperparameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the user's hyperparameters, parsed, in the order of the request."""
    return {name: parse_value(text) for name, text in hyperparameters.items() if not is_platform_key(name)}


def platform_values(hyperparameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the platform's hyperparameters, parsed, in the order of the request."""
    return {name: parse_value(text) for name, text in hyperparameters.items() if is_platform_key(name)}


def told_to_program(hyperparameters: Mapping[str, str], *, job_name: str, image: str) -> Mapping[str, str]:
    """Return the hyperparameters that arguments and variables tell a program.

    Trials of one tuning job would write into one `model_dir`. AWS's images of TensorFlow tell each trial a folder below
    it, unless it lies below /opt/ml; so does this function.

    Args:
        hyperparameters: of the request, as text.
        job_name: of the training job.
        image: as in the request.
    Source: sagemaker-tensorflow-training, `training.main`.
    """
    repository = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    folder = parse_value(hyperparameters.get(MODEL_DIR, ""))
    if TUNING_OBJECTIVE not in hyperparameters or "tensorflow" not in repository or not isinstance(folder, str):
        return hyperparameters
    if not folder or folder.startswith(str(OPT_ML)):
        return hyperparameters
    return {**hyperparameters, MODEL_DIR: json.dumps(f"{folder}/{job_name}/model")}


def framework_parameters(hyperparameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the platform's hyperparameters that configure a launcher: `sagemaker_*` without the toolkit's own keys."""
    values = platform_values(hyperparameters)
    return {name: value for name, value in values.items() if name not in TOOLKIT_KEYS}


def platform_text(hyperparameters: Mapping[str, str], name: str) -> str | None:
    """Return one of the platform's values, in either dialect, as text; None if it is absent, null or empty."""
    if name not in hyperparameters:
        return None
    value = parse_value(hyperparameters[name])
    return None if value is None or value == "" else str(value)


def named_program(hyperparameters: Mapping[str, str], environment: Mapping[str, str]) -> NamedProgram | None:
    """Return the entry point: Environment's SAGEMAKER_PROGRAM, verbatim, else the hyperparameter; None without both.

    Args:
        hyperparameters: of the request, as text.
        environment: variables of the request, and of the image if they are known.
    Source: sagemaker-training 5.1.4, `environment.Environment.__init__`, which ignores an empty variable, too.
    """
    if variable := environment.get(PROGRAM_VARIABLE):
        return NamedProgram(name=variable, named_by=f"Environment's {PROGRAM_VARIABLE}")
    name = platform_text(hyperparameters, PROGRAM)
    return None if name is None else NamedProgram(name=name, named_by=PROGRAM)


def is_enabled(hyperparameters: Mapping[str, str], name: str) -> bool:
    """Whether a switch of the platform is on: `true` in any case, or another true JSON value, such as 1."""
    if name not in hyperparameters:
        return False
    value = parse_value(hyperparameters[name])
    if isinstance(value, str):
        return value.strip().lower() == "true"
    return bool(value)


def host_share(hyperparameters: Mapping[str, str]) -> float:
    """Return the fraction of each host that the job gets: from `LEAST_HOST_SHARE` to 1; 1 by default.

    Raises: ValueError with a sentence for any other value.
    """
    text = platform_text(hyperparameters, HOST_SHARE)
    if text is None:
        return 1.0
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not LEAST_HOST_SHARE <= share <= 1.0:  # false for nan, too
        raise ValueError(
            f"hyperparameter {HOST_SHARE}: expected a fraction of a host from {LEAST_HOST_SHARE:g} to 1, "
            f"such as 0.25, got {text[:40]!r}"
        )
    return share


def model_parallel_parameters(hyperparameters: Mapping[str, str]) -> dict[str, Any] | None:
    """Return `mp_parameters` of the model parallel library, or None if they are absent, empty or not a JSON object.

    The same key also reaches the program: as `--mp_parameters k=v,k2=v2` and as JSON in SM_HP_MP_PARAMETERS.
    """
    if MP_PARAMETERS not in hyperparameters:
        return None
    value = parse_value(hyperparameters[MP_PARAMETERS])
    return value if isinstance(value, dict) and value else None


def cli_arguments(hyperparameters: Mapping[str, str]) -> tuple[str, ...]:
    """Return the user's hyperparameters as arguments of the program, in the toolkit's form.

    Names are sorted, one-letter names get one dash. Objects become `k=v,k2=v2`, lists become their Python form (`[1,
    2]`), true and false become `True` and `False`, and null becomes the empty string.
    """
    values = user_values(hyperparameters)
    arguments: list[str] = []
    for name in sorted(values):
        dashes = "-" if len(name) == 1 else "--"
        arguments += [f"{dashes}{name}" if name else "", _argument(values[name])]
    return tuple(arguments)


def unusable(hyperparameters: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each hyperparameter that a command line or an environment cannot carry.

    Only NUL characters and lone surrogates are unusable; quotes, newlines, spaces and all alphabets are usable.
    """
    problems = []
    for name, text in hyperparameters.items():
        for part in (name, _argument(parse_value(text))):
            if "\0" in part:
                problems.append(f"hyperparameter {name!r} holds a NUL character, which no command line can carry")
                break
            if any("\ud800" <= character <= "\udfff" for character in part):
                problems.append(f"hyperparameter {name!r} holds half of a surrogate pair, which UTF-8 cannot carry")
                break
    return tuple(problems)


def _argument(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in sorted(value.items()))
    return str(value)
