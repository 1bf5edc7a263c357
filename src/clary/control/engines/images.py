"""Chooses the Python environment that is used for a container image.

Where: CreateTrainingJob resolves the image to refuse unknown images at once; `reconcile.launching` resolves it again
for the plan. There are no containers: an image is mapped to an environment by its `repo:tag`; the registry, which only
names account and region, matters only to a pattern that contains it. The patterns of setting `images` have precedence
(the most specific first). Then AWS's own images are mapped to the environment whose framework and Python have the
versions of the tag, else to the default environment if it has the framework. Every other image is refused with the
lines to add to settings.toml.

Pure except for the given `Probe`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from clary.base.errors import EngineError, WireError
from clary.contract.launch_plan import Environment
from clary.contract.settings.built_in_algorithms import OTHER_ALGORITHMS, XGBOOST, is_xgboost
from clary.control.engines.image_tags import choose_environment, differences, rule_for, variables_like, wanted_by
from clary.control.settings import Settings

DEFAULT_ENVIRONMENT = "default"
TORCH_PACKAGES = ("torch", "numpy")  # numpy: DataLoader and most scripts need it, and torch does not install it
WANTED_MODULE = "torch"  # module that makes an interpreter the default
_OWN_PYTHON = "a Python that you have"


class Probe(Protocol):
    """Inspects Python environments."""

    def candidates(self) -> Sequence[str]:
        """Return interpreters of this machine that may serve as the default environment, best first."""

    def added(self) -> Mapping[str, str]:
        """Return name -> interpreter of the environments that `clary environments add` has made."""

    def modules(self, python: str) -> Mapping[str, str]:
        """Return module -> version (empty if unknown) of the frameworks that `python` can import, and `PYTHON`.

        Raises: EngineError if the interpreter cannot be run.
        """

    def install_command(self, *packages: str) -> str:
        """Return the command that installs packages for the first candidate."""

    def cpu_build_option(self) -> str:
        """Return the option of `install_command` that selects torch's build for machines without a GPU."""


@dataclass(frozen=True)
class ImageName:
    """The relevant parts of an image's name."""

    repository: str  # without registry; may contain slashes
    tag: str

    @property
    def short(self) -> str:
        """`repo:tag`, as in settings."""
        return f"{self.repository}:{self.tag}"


def parse_image(image: str) -> ImageName:
    """Parse `registry/repo:tag`; without a tag, or with a digest only, the tag is `latest`."""
    name = image.partition("@")[0]
    first, slash, rest = name.partition("/")
    # Docker's own rule: the first part is a registry if it has the form of a host name.
    if slash and ("." in first or ":" in first or first == "localhost"):
        name = rest
    repository, _, tag = name.partition(":")
    return ImageName(repository, tag or "latest")


def resolve(image: str, settings: Settings, probe: Probe) -> tuple[Environment, tuple[str, ...]]:
    """Return the environment for `image`, and notes on how it differs from the image.

    Args:
        image: as the request names it.
        settings: settings, whose `images` patterns and environments have precedence.
        probe: inspects the interpreters of this machine.
    Raises: WireError ValidationException with the lines to add to settings.toml, if no environment fits the image.
    """
    name = parse_image(image)
    pattern = _best_pattern(image, name, settings.images)
    if pattern is not None:
        environment_name = settings.images[pattern]
        python = _python_of(environment_name, settings, probe)
        if python is None:
            is_default = environment_name == DEFAULT_ENVIRONMENT
            raise _refused(
                image,
                f"setting images maps {pattern!r} to the environment {environment_name!r}, and "
                + (no_torch(probe) if is_default else "no environment of that name is set"),
                _environment_lines(environment_name),
                instead=_OWN_PYTHON if is_default else "",
            )
        return _likened(name, Environment(name=environment_name, python=python, image=image), probe)
    algorithm = OTHER_ALGORITHMS.get(name.repository)
    if algorithm is not None:
        raise _no_algorithm(image, algorithm)
    rule = rule_for(XGBOOST if is_xgboost(image) else name.repository)
    if rule is None:
        raise _refused(image, "no image of this name is known here", _image_lines(name, "my-environment"))
    pythons = _environments(settings, probe)
    choice, others = None, {}
    if rule.module:
        modules_by_name = {one: _modules_or_none(python, probe) for one, python in pythons.items()}
        others = {one: modules[rule.module] for one, modules in modules_by_name.items() if rule.module in modules}
        choice = choose_environment(wanted_by(rule, name.tag), modules_by_name, default=DEFAULT_ENVIRONMENT)
    chosen = DEFAULT_ENVIRONMENT if choice is None else choice.name
    if rule.module not in ("", WANTED_MODULE) and (
        chosen not in pythons or rule.module not in _modules(image, pythons[chosen], chosen, probe)
    ):
        raise _without_module(image, name, rule.module, pythons.get(chosen), others)
    if chosen not in pythons:
        raise _refused(
            image,
            f"it would run in the default environment, and {no_torch(probe)}",
            _environment_lines(DEFAULT_ENVIRONMENT),
            instead=_OWN_PYTHON,
        )
    python = pythons[chosen]
    if rule.module and rule.module not in _modules(image, python, chosen, probe):
        if others:
            raise _without_module(image, name, rule.module, python, others)
        raise _refused(
            image,
            f"the default environment {python} has no module {rule.module}",
            _image_lines(name, f"my-{rule.module}"),
        )
    return _likened(name, Environment(name=chosen, python=python, image=image), probe)


def default_python(settings: Settings, probe: Probe) -> str | None:
    """Return the interpreter of the default environment, or None if no Python here has torch.

    An interpreter that settings name is returned without a check; otherwise the first candidate with torch is returned.
    """
    named = settings.environments.get(DEFAULT_ENVIRONMENT) or settings.default_python
    if named:
        return named
    for python in probe.candidates():
        try:
            if WANTED_MODULE in probe.modules(python):
                return python
        except EngineError:
            continue  # a python3 on PATH that does not run is ignored
    return None


def no_torch(probe: Probe) -> str:
    """Return a sentence saying that no Python on this machine has torch, with the command that installs it."""
    return (
        f"no Python with {WANTED_MODULE} was found; to have one, run: {probe.install_command(*TORCH_PACKAGES)} "
        f"(without a GPU, {probe.cpu_build_option()} at its end takes the build without CUDA, a tenth of the size; the "
        "service need not be started again)"
    )


def why_default_fails(settings: Settings, probe: Probe) -> str:
    """Return why AWS's images of PyTorch cannot run in the default environment; empty if they can."""
    python = default_python(settings, probe)
    if python is None:
        return no_torch(probe)
    try:
        if WANTED_MODULE in probe.modules(python):
            return ""
    except EngineError as error:
        return f"{_setting_of_default(settings)}: {error.message}"
    named = f"{_setting_of_default(settings)} names {python}"
    return f"{named}, which has no {WANTED_MODULE}: install it there, or name another"


def _setting_of_default(settings: Settings) -> str:
    return (
        f"setting environments.{DEFAULT_ENVIRONMENT}"
        if DEFAULT_ENVIRONMENT in settings.environments
        else "setting default_python"
    )


def _python_of(environment_name: str, settings: Settings, probe: Probe) -> str | None:
    if environment_name == DEFAULT_ENVIRONMENT:
        return default_python(settings, probe)
    return settings.environments.get(environment_name) or probe.added().get(environment_name)


def _environments(settings: Settings, probe: Probe) -> Mapping[str, str]:
    """Return name -> interpreter of all environments; environments of settings have precedence over added ones."""
    pythons = {**probe.added(), **settings.environments}
    python = default_python(settings, probe)
    return pythons if python is None else {**pythons, DEFAULT_ENVIRONMENT: python}


def _modules_or_none(python: str, probe: Probe) -> Mapping[str, str]:
    try:
        return probe.modules(python)
    except EngineError:  # an environment that does not run matches no image; it is refused if it is named
        return {}


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


def _modules(image: str, python: str, environment_name: str, probe: Probe) -> Mapping[str, str]:
    try:
        return probe.modules(python)
    except EngineError as error:
        raise _refused(image, error.message, _environment_lines(environment_name)) from error


def _likened(name: ImageName, environment: Environment, probe: Probe) -> tuple[Environment, tuple[str, ...]]:
    """Return the environment with variables that make it more like the image, and notes on remaining differences."""
    modules = _modules(environment.image, environment.python, environment.name, probe)
    rule = rule_for(name.repository)
    if rule is None or not rule.module:
        return environment, ()
    wanted = wanted_by(rule, name.tag)
    notes = []
    found = differences(wanted, modules)
    if found:
        notes.append(
            f"the environment {environment.name!r} stands for image {name.short} with {', '.join(found)}; "
            f"clary environments add {name.short} makes one like it"
        )
    variables, words = variables_like(wanted, modules)
    if words:
        notes.append(words)
    return replace(environment, variables=variables), tuple(notes)


def _without_module(
    image: str, name: ImageName, module: str, python: str | None, others: Mapping[str, str]
) -> WireError:
    """Return the error for an image whose framework no environment has in the tag's version.

    Args:
        image: as the request names it.
        name: its parts.
        module: of the framework.
        python: interpreter of the default environment, which lacks the module; None without one.
        others: environments that have the module in another version -> that version.
    """
    command = f"to have an environment like the image, run: clary environments add {name.short}"
    if others:
        has = ", ".join(f"{one!r} has {module} {version}".rstrip() for one, version in sorted(others.items()))
        return _refused(
            image,
            f"no environment here has {module} in the image's version; {has}. {command[0].upper()}{command[1:]} (the "
            "service need not be started again)",
            f"[images]\n{_quoted(name.short)} = {_quoted(min(others))}",
            instead="one of these",
        )
    lacking = f"no environment here has the module {module}"
    if python is not None:
        lacking = f"the default environment {python} has no module {module}"
    return _refused(
        image,
        f"{lacking}; {command} (the service need not be started again)",
        _image_lines(name, f"my-{module}"),
        instead=_OWN_PYTHON,
    )


def _no_algorithm(image: str, algorithm: str) -> WireError:
    return WireError(
        "ValidationException",
        f"The training image {image} is SageMaker's built-in algorithm {algorithm}, which is not offered here: of the "
        "built-in algorithms only XGBoost (sagemaker-xgboost) is. Train with a script of your own in an image of a "
        "framework. An image of your own with this name runs if setting images maps it to an environment.",
    )


def _refused(image: str, why: str, lines: str, *, instead: str = "") -> WireError:
    """Return the error that refuses an image.

    Args:
        image: as the request names it.
        why: reason for the refusal, with the remedy if `instead` is given.
        lines: lines for settings.toml that name an environment for the image.
        instead: what the lines take, if `why` names a remedy already to which they are an alternative.
    """
    add = f"To take {instead} instead, add" if instead else "Add"
    return WireError(
        "ValidationException",
        f"Could not find an environment for the training image {image}: {why}. "
        f"{add} to settings.toml in the service's state folder, and start the service anew:\n{lines}",
    )


def _image_lines(name: ImageName, environment_name: str) -> str:
    return f"[images]\n{_quoted(name.short)} = {_quoted(environment_name)}\n\n{_environment_lines(environment_name)}"


def _environment_lines(environment_name: str) -> str:
    return f'[environments]\n{_quoted(environment_name)} = "/path/to/environment/bin/python"'


def _quoted(text: str) -> str:
    """Return a TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
