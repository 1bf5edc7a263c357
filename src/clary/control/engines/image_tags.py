"""Parses the environment that an image's name describes, and chooses the most similar environment. Pure.

Where: `images` chooses environments with it; `clary environments add` makes an environment from the parsed name.
Source: image URIs of the SageMaker SDKs and https://github.com/aws/deep-learning-containers:
`pytorch-training:2.8.0-gpu-py312-cu129-ubuntu22.04-sagemaker`,
`huggingface-pytorch-training:2.5.1-transformers4.49.0-gpu-py311`, `sagemaker-scikit-learn:1.2-1-cpu-py3`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LEGACY_KERAS = "tf_keras"  # package with Keras 2 for TensorFlow versions with Keras 3
_FIRST_KERAS_3 = (2, 16)  # of TensorFlow
PYTHON = "python"  # key among an environment's modules for the version of its interpreter


@dataclass(frozen=True)
class Rule:
    """An AWS image and the modules of its environment."""

    pattern: str  # pattern of the repository's last part
    module: str  # required module of the framework whose version begins the tag; empty for plain Python
    extra: str = ""  # another module, whose absence only causes a note


RULES = (
    Rule("pytorch-training", "torch"),
    Rule("pytorch-training-*", "torch"),
    Rule("pytorch-trcomp-training", "torch"),
    Rule("huggingface-pytorch-training", "torch", "transformers"),
    Rule("huggingface-pytorch-training-*", "torch", "transformers"),
    Rule("huggingface-pytorch-trcomp-training", "torch", "transformers"),
    Rule("smdistributed-modelparallel", "torch"),
    Rule("sagemaker-pytorch", "torch"),
    Rule("tensorflow-training", "tensorflow"),
    Rule("sagemaker-tensorflow*", "tensorflow"),
    Rule("huggingface-tensorflow-training", "tensorflow", "transformers"),
    Rule("huggingface-tensorflow-trcomp-training", "tensorflow", "transformers"),
    Rule("mxnet-training", "mxnet"),
    Rule("sagemaker-mxnet*", "mxnet"),
    Rule("autogluon-training", "autogluon"),
    Rule("sagemaker-xgboost", "xgboost"),
    Rule("sagemaker-scikit-learn", "sklearn"),
    Rule("sagemaker-base-python*", ""),
    Rule("sagemaker-distribution*", ""),
)

# The framework's version at the start of a tag: 2.8.0-gpu-py312, 1.2-1-cpu-py3.
_TAG_VERSION = re.compile(r"^([0-9]+(?:\.[0-9]+){1,2})(?![0-9.])")
_TAG_PYTHON = re.compile(r"(?:^|-)py([23])([0-9]{1,2})(?=-|$)")
_TAG_EXTRA = re.compile(r"(?:^|-)transformers([0-9]+(?:\.[0-9]+){1,2})(?=-|$)")


@dataclass(frozen=True)
class Wanted:
    """The modules and versions in an image's name; missing versions are empty."""

    module: str
    version: str = ""
    python: str = ""  # major.minor
    extra: str = ""
    extra_version: str = ""


@dataclass(frozen=True)
class Choice:
    """An environment and why it was chosen."""

    name: str
    reason: str


def rule_for(repository: str) -> Rule | None:
    """Return the rule for the last part of an image's repository; None if AWS has no such image."""
    last = repository.rpartition("/")[2]
    return next((rule for rule in RULES if fnmatch.fnmatchcase(last, rule.pattern)), None)


def wanted_by(rule: Rule, tag: str) -> Wanted:
    """Return the modules and versions that a tag describes."""
    version, python, extra = _TAG_VERSION.match(tag), _TAG_PYTHON.search(tag), _TAG_EXTRA.search(tag)
    return Wanted(
        module=rule.module,
        version=version.group(1) if version else "",
        python=f"{python.group(1)}.{python.group(2)}" if python else "",
        extra=rule.extra,
        extra_version=extra.group(1) if extra and rule.extra else "",
    )


def choose_environment(
    wanted: Wanted, modules_by_name: Mapping[str, Mapping[str, str]], *, default: str
) -> Choice | None:
    """Return the environment that is most similar to an image.

    The framework's version (major.minor) is compared first, then the interpreter's, then the rest of the framework's
    version, then further modules. The default environment is chosen if no other is more similar.

    Args:
        wanted: the image's modules and versions.
        modules_by_name: environment -> module -> version; the modules include `PYTHON`.
        default: name of the default environment, which may be missing.
    Returns: None if no environment has the framework in the tag's version; the default environment is then used despite
    the difference.
    """
    # among equally similar environments, min takes the first
    names = sorted(modules_by_name, key=lambda name: (name != default, name))
    fitting = [name for name in names if _fits(wanted, modules_by_name[name])]
    if not fitting:
        return None
    best = min(fitting, key=lambda name: _distance(wanted, modules_by_name[name]))
    has = [f"{wanted.module} {modules_by_name[best].get(wanted.module, '')}".strip()]
    if modules_by_name[best].get(PYTHON):
        has.append(f"Python {modules_by_name[best][PYTHON]}")
    return Choice(name=best, reason=f"the environment {best!r} has {' and '.join(has)}")


def differences(wanted: Wanted, modules: Mapping[str, str]) -> Sequence[str]:
    """Return how an environment differs from an image, each as `THIS instead of THAT` or `no THIS`."""
    found = []
    version = modules.get(wanted.module, "")
    if wanted.module and wanted.module not in modules:
        found.append(f"no {wanted.module}")
    elif wanted.version and version and not is_version(version, wanted.version):
        found.append(f"{wanted.module} {version} instead of {wanted.version}")
    python = modules.get(PYTHON, "")
    if wanted.python and python and not is_version(python, wanted.python):
        found.append(f"Python {python} instead of {wanted.python}")
    if wanted.extra and wanted.extra not in modules:
        found.append(f"no {wanted.extra}")
    elif wanted.extra_version and not _is_minor(modules.get(wanted.extra, ""), wanted.extra_version):
        found.append(f"{wanted.extra} {modules.get(wanted.extra, '')} instead of {wanted.extra_version}")
    return found


def variables_like(wanted: Wanted, modules: Mapping[str, str]) -> tuple[Mapping[str, str], str]:
    """Return variables that make an environment more like an image, and a sentence on their effect or obstacle.

    TensorFlow's images before 2.16 have Keras 2. Later versions of TensorFlow have Keras 3 under the same names
    `tf.keras` and `keras`, unless TF_USE_LEGACY_KERAS is set and the package tf_keras is installed.

    Args:
        wanted: the image's modules and versions.
        modules: modules of the environment, with their versions.
    """
    has_keras_3 = not _is_before(modules.get("tensorflow", ""), _FIRST_KERAS_3)
    if wanted.module != "tensorflow" or not _is_before(wanted.version, _FIRST_KERAS_3) or not has_keras_3:
        return {}, ""
    if _LEGACY_KERAS not in modules:
        return {}, "tf.keras is Keras 3 instead of the image's Keras 2, because the package tf_keras is not installed"
    variables = {"TF_USE_LEGACY_KERAS": "1", "CLARY_KERAS_2": "1"}  # clary_keras.py reads the second
    return variables, "tf.keras and keras are Keras 2 as in the image (TF_USE_LEGACY_KERAS=1, CLARY_KERAS_2=1)"


def _is_before(version: str, first: tuple[int, int]) -> bool:
    """Whether a version is older than another; False for an unknown version."""
    found = _TAG_VERSION.match(version)
    return found is not None and tuple(map(int, found.group(1).split(".")[:2])) < first


def is_version(version: str, wanted: str) -> bool:
    """Whether `version`, such as 2.8.0+cpu, matches a tag's `wanted`, such as 2.8."""
    parts = wanted.split(".")
    return re.split(r"[.+]", version)[: len(parts)] == parts


def _is_minor(version: str, wanted: str) -> bool:
    return is_version(version, ".".join(wanted.split(".")[:2]))


def _fits(wanted: Wanted, modules: Mapping[str, str]) -> bool:
    if wanted.module and wanted.module not in modules:
        return False
    return not wanted.version or _is_minor(modules[wanted.module], wanted.version)


def _distance(wanted: Wanted, modules: Mapping[str, str]) -> tuple[int, ...]:
    python = modules.get(PYTHON, "")
    return (
        int(bool(wanted.python and python) and not _is_minor(python, wanted.python)),
        int(bool(wanted.version) and not is_version(modules.get(wanted.module, ""), wanted.version)),
        int(bool(wanted.extra) and wanted.extra not in modules),
        int(bool(wanted.extra_version) and not _is_minor(modules.get(wanted.extra, ""), wanted.extra_version)),
    )
