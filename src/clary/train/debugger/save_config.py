"""Steps at which tensors are saved, for each phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from clary.train.debugger.errors import ConfigurationError
from clary.train.debugger.modes import ModeKeys

SAVE_INTERVAL = 500  # steps; smdebug's default
_FIELDS = ("save_interval", "start_step", "end_step", "save_steps")


@dataclass(kw_only=True)
class SaveConfigMode:
    """Steps of one phase at which tensors are saved.

    Args:
        save_interval: save the steps that are multiples of this number.
        start_step: first step to save.
        end_step: save steps below it; None for no end.
        save_steps: further steps to save, regardless of the other parameters.

    Raises: ConfigurationError.
    """

    save_interval: int = SAVE_INTERVAL
    start_step: int = 0
    end_step: int | None = None
    save_steps: Iterable[int] | None = ()

    def __post_init__(self) -> None:
        self.save_interval = _whole("save_interval", self.save_interval, SAVE_INTERVAL, least=1)
        self.start_step = _whole("start_step", self.start_step, 0)
        self.end_step = None if self.end_step is None else _whole("end_step", self.end_step, 0)
        self.save_steps = sorted({_whole("save_steps", step, 0) for step in self.save_steps or ()})

    def should_save_step(self, step_num: int) -> bool:
        """Return whether a step is saved."""
        is_between = step_num >= self.start_step and (self.end_step is None or step_num < self.end_step)
        return (is_between and step_num % self.save_interval == 0) or step_num in (self.save_steps or ())


class SaveConfig:
    """Steps of all phases: the same steps for each phase, or a `SaveConfigMode` for some phases.

    `save_interval`, `start_step`, `end_step` and `save_steps` may be assigned later, for all phases at once.

    Raises: ConfigurationError.
    """

    def __init__(
        self,
        mode_save_configs: Mapping[ModeKeys, SaveConfigMode | None] | None = None,
        save_interval: int | None = None,
        start_step: int | None = None,
        end_step: int | None = None,
        save_steps: Iterable[int] | None = None,
    ) -> None:
        # SaveConfigMode replaces None by the default.
        given: dict[str, Any] = {"save_interval": save_interval, "start_step": start_step, "end_step": end_step}
        steps = list(save_steps or ())
        for mode, config in (mode_save_configs or {}).items():
            if not isinstance(mode, ModeKeys) or not isinstance(config, SaveConfigMode | None):
                raise ConfigurationError(f"mode_save_configs maps ModeKeys to SaveConfigMode, got {mode!r}: {config!r}")
        modes = {
            mode: (mode_save_configs or {}).get(mode) or SaveConfigMode(**given, save_steps=steps) for mode in ModeKeys
        }
        self.mode_save_configs: dict[ModeKeys, SaveConfigMode] = modes

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "mode_save_configs":
            super().__setattr__(name, value)
        elif name in _FIELDS:
            for mode, config in self.mode_save_configs.items():
                self.mode_save_configs[mode] = replace(config, **{name: value})
        else:
            raise AttributeError(f"SaveConfig has no {name!r}; it has {', '.join(_FIELDS)}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SaveConfig) and self.mode_save_configs == other.mode_save_configs

    __hash__ = None  # type: ignore[assignment]  # it can change

    def should_save_step(self, mode: ModeKeys, step_num: int) -> bool:
        """Return whether a phase's step is saved; `step_num` counts the phase's own steps."""
        return self.mode_save_configs[mode].should_save_step(step_num)

    def get_save_config(self, mode: ModeKeys) -> SaveConfigMode:
        """Return the steps of a phase."""
        return self.mode_save_configs[mode]

    @classmethod
    def parse(cls, given: Any) -> SaveConfig:
        """Make a SaveConfig from None, a SaveConfig, a SaveConfigMode or a dict of SaveConfigModes by phase.

        Raises: ConfigurationError.
        """
        if given is None:
            return cls()
        if isinstance(given, SaveConfig):
            return given
        if isinstance(given, SaveConfigMode):
            return cls(dict.fromkeys(ModeKeys, given))
        if isinstance(given, dict):
            return cls({mode: SaveConfigMode(**one) if isinstance(one, dict) else one for mode, one in given.items()})
        raise ConfigurationError(f"save_config is a {type(given).__name__}; expected a SaveConfig")

    def changed_by(self, parameters: Mapping[str, Any]) -> SaveConfig:
        """Return a copy changed by a job's parameters: `save_interval`, `eval.save_interval`...

        Raises: ConfigurationError.
        """
        modes = {}
        for mode, config in self.mode_save_configs.items():
            changes: dict[str, Any] = {}
            for prefix in ("", f"{mode.name.lower()}."):
                changes |= {name: parameters[prefix + name] for name in _FIELDS if prefix + name in parameters}
            if isinstance(changes.get("save_steps"), str):
                changes["save_steps"] = [step for step in changes["save_steps"].split(",") if step.strip()]
            modes[mode] = replace(config, **changes)
        return SaveConfig(modes)


def _whole(name: str, value: Any, default: int, *, least: int = 0) -> int:
    if value is None:
        return default
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = least - 1
    if number < least:
        raise ConfigurationError(f"{name} is {value!r}; expected a whole number of steps, {least} or more")
    return number
