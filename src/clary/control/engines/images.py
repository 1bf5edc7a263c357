"""Which Python environment stands for a container image.

Where: CreateTrainingJob resolves the image to refuse unknown ones at once; the planner resolves it again for the plan.
There are no containers: an image is mapped by its `repo:tag`, the registry is ignored, because it only says account
and region. First the patterns of setting `images` (most specific first), then the rules for AWS's own images, which
stand for the default environment if that has their framework. Everything else is refused with the lines to add.

Pure but for the `Probe` that it is given.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from clary.contract.errors import EngineError, WireError
from clary.contract.launch_plan import Environment
from clary.control.settings import Settings

DEFAULT_ENVIRONMENT = "default"
TORCH_PACKAGES = ("torch", "numpy")  # numpy: DataLoader and most scripts ask for it, torch does not bring it
WANTED_MODULE = "torch"  # what makes an interpreter the default one


class Probe(Protocol):
    """Looks into Python environments."""

    def candidates(self) -> Sequence[str]:
        """Return interpreters of this machine that may serve as the default environment, best first."""

    def modules(self, python: str) -> Mapping[str, str]:
        """Return module -> version (empty if unknown) of the frameworks that `python` can import.

        Raises: EngineError if the interpreter can not be run.
        """

    def install_command(self, *packages: str) -> str:
        """Return the command that installs packages where the first candidate finds them."""


@dataclass(frozen=True)
class _Rule:
    """An AWS image and what its environment should have."""

    pattern: str  # of the repository's last part
    module: str  # of the framework, whose version the tag begins with; required; empty for plain Python images
    extra: str = ""  # a further module, whose absence is only noted


# Source: image URIs of the SageMaker SDKs and https://github.com/aws/deep-learning-containers.
_RULES = (
    _Rule("pytorch-training", "torch"),
    _Rule("pytorch-training-*", "torch"),
    _Rule("pytorch-trcomp-training", "torch"),
    _Rule("huggingface-pytorch-training", "torch", "transformers"),
    _Rule("huggingface-pytorch-training-*", "torch", "transformers"),
    _Rule("huggingface-pytorch-trcomp-training", "torch", "transformers"),
    _Rule("smdistributed-modelparallel", "torch"),
    _Rule("sagemaker-pytorch", "torch"),
    _Rule("tensorflow-training", "tensorflow"),
    _Rule("sagemaker-tensorflow*", "tensorflow"),
    _Rule("huggingface-tensorflow-training", "tensorflow", "transformers"),
    _Rule("huggingface-tensorflow-trcomp-training", "tensorflow", "transformers"),
    _Rule("mxnet-training", "mxnet"),
    _Rule("sagemaker-mxnet*", "mxnet"),
    _Rule("autogluon-training", "autogluon"),
    _Rule("sagemaker-xgboost", "xgboost"),
    _Rule("sagemaker-scikit-learn", "sklearn"),
    _Rule("sagemaker-base-python*", ""),
    _Rule("sagemaker-distribution*", ""),
)

# The framework's version as its tag spells it: 2.8.0-gpu-py312, 1.2-1-cpu-py3.
_TAG_VERSION = re.compile(r"^([0-9]+(?:\.[0-9]+){1,2})(?![0-9.])")


@dataclass(frozen=True)
class ImageName:
    """The parts of an image's name that count."""

    repository: str  # without registry; may hold slashes
    tag: str

    @property
    def short(self) -> str:
        """`repo:tag`, as settings spell it."""
        return f"{self.repository}:{self.tag}"


def parse_image(image: str) -> ImageName:
    """Split `registry/repo:tag`; without a tag, or with a digest only, the tag is `latest`."""
    name = image.partition("@")[0]
    first, slash, rest = name.partition("/")
    # Docker's own rule: the first part is a registry if it looks like a host name.
    if slash and ("." in first or ":" in first or first == "localhost"):
        name = rest
    repository, _, tag = name.partition(":")
    return ImageName(repository, tag or "latest")


def resolve(image: str, settings: Settings, probe: Probe) -> tuple[Environment, tuple[str, ...]]:
    """Return the environment that stands for `image`, and notes on how it differs from the image.

    Raises: WireError ValidationException with the lines to add to settings.toml, if nothing stands for it.
    """
    name = parse_image(image)
    pattern = _best_pattern(image, name, settings.images)
    if pattern is not None:
        environment_name = settings.images[pattern]
        python = _python_of(environment_name, settings, probe)
        if python is None:
            raise _refused(
                image,
                f"setting images maps {pattern!r} to the environment {environment_name!r}, and "
                + (
                    no_torch(probe) if environment_name == DEFAULT_ENVIRONMENT else "no environment of that name is set"
                ),
                _environment_lines(environment_name),
            )
        environment = Environment(name=environment_name, python=python, image=image)
        return environment, _notes(name, environment, probe)
    rule = _rule_for(name)
    if rule is None:
        raise _refused(image, "no image of this name is known here", _image_lines(name, "my-environment"))
    python = _python_of(DEFAULT_ENVIRONMENT, settings, probe)
    if python is None:
        raise _refused(
            image,
            f"it would run in the default environment, and {no_torch(probe)}",
            _environment_lines(DEFAULT_ENVIRONMENT),
        )
    if rule.module and rule.module not in _modules(image, python, DEFAULT_ENVIRONMENT, probe):
        raise _refused(
            image,
            f"the default environment {python} has no module {rule.module}",
            _image_lines(name, f"my-{rule.module}"),
        )
    environment = Environment(name=DEFAULT_ENVIRONMENT, python=python, image=image)
    return environment, _notes(name, environment, probe)


def default_python(settings: Settings, probe: Probe) -> str | None:
    """Return the interpreter of the default environment, or None if no Python here has torch.

    What settings name is taken as it stands; otherwise the first candidate with torch.
    """
    named = settings.environments.get(DEFAULT_ENVIRONMENT) or settings.default_python
    if named:
        return named
    for python in probe.candidates():
        try:
            if WANTED_MODULE in probe.modules(python):
                return python
        except EngineError:
            continue  # a python3 on PATH that does not run is none
    return None


def no_torch(probe: Probe) -> str:
    """Say that no Python here has torch, and the one command that mends it; refusals and commands say the same."""
    return f"no Python with {WANTED_MODULE} was found; to have one, run: {probe.install_command(*TORCH_PACKAGES)}"


def why_default_fails(settings: Settings, probe: Probe) -> str:
    """Return why images of AWS's frameworks can not run in the default environment; empty if they can."""
    python = default_python(settings, probe)
    if python is None:
        return no_torch(probe)
    try:
        if WANTED_MODULE in probe.modules(python):
            return ""
    except EngineError as error:
        return f"setting default_python: {error.message}"
    return f"setting default_python names {python}, which has no {WANTED_MODULE}: install it there, or name another"


def _python_of(environment_name: str, settings: Settings, probe: Probe) -> str | None:
    if environment_name == DEFAULT_ENVIRONMENT:
        return default_python(settings, probe)
    return settings.environments.get(environment_name)


def _best_pattern(image: str, name: ImageName, patterns: Mapping[str, str]) -> str | None:
    """Return the most specific pattern that matches: most literal characters, then fewest wildcards, then by name."""
    matching = [
        pattern
        for pattern in patterns
        if fnmatch.fnmatchcase(name.short, pattern)
        or fnmatch.fnmatchcase(name.repository, pattern)
        or fnmatch.fnmatchcase(image, pattern)
    ]
    return min(matching, key=_specificity, default=None)


def _specificity(pattern: str) -> tuple[int, int, str]:
    wildcards = sum(pattern.count(character) for character in "*?[")
    return wildcards - len(pattern), wildcards, pattern


def _rule_for(name: ImageName) -> _Rule | None:
    repository = name.repository.rpartition("/")[2]
    return next((rule for rule in _RULES if fnmatch.fnmatchcase(repository, rule.pattern)), None)


def _modules(image: str, python: str, environment_name: str, probe: Probe) -> Mapping[str, str]:
    try:
        return probe.modules(python)
    except EngineError as error:
        raise _refused(image, error.message, _environment_lines(environment_name)) from error


def _notes(name: ImageName, environment: Environment, probe: Probe) -> tuple[str, ...]:
    """Say how the environment differs from the image, as far as the image's name tells."""
    modules = _modules(environment.image, environment.python, environment.name, probe)
    rule, match = _rule_for(name), _TAG_VERSION.match(name.tag)
    if rule is None or not rule.module:
        return ()
    notes = []
    version = modules.get(rule.module, "")
    stands = f"the environment {environment.name!r} that stands for it"
    if rule.module not in modules:
        notes.append(f"image {name.short} has {rule.module}; {stands} has not")
    elif match is not None and version and not _is_version(version, match.group(1)):
        notes.append(f"image {name.short} has {rule.module} {match.group(1)}; {stands} has {rule.module} {version}")
    if rule.extra and rule.extra not in modules:
        notes.append(f"image {name.short} has {rule.extra}; {stands} has not")
    return tuple(notes)


def _is_version(version: str, wanted: str) -> bool:
    """Whether `version`, say 2.8.0+cpu, is what a tag calls `wanted`, say 2.8."""
    parts = wanted.split(".")
    return re.split(r"[.+]", version)[: len(parts)] == parts


def _refused(image: str, why: str, lines: str) -> WireError:
    return WireError(
        "ValidationException",
        f"Could not find an environment for the training image {image}: {why}. "
        f"Add to settings.toml in the service's state folder, and start the service anew:\n{lines}",
    )


def _image_lines(name: ImageName, environment_name: str) -> str:
    return f"[images]\n{_quoted(name.short)} = {_quoted(environment_name)}\n\n{_environment_lines(environment_name)}"


def _environment_lines(environment_name: str) -> str:
    return f'[environments]\n{_quoted(environment_name)} = "/path/to/environment/bin/python"'


def _quoted(text: str) -> str:
    """Return a TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
