"""Requests of a job for its models: compilation and mixed precision.

Where: the agent sets the variables from hyperparameters (`agent.environments.compilation`). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clary.contract.settings.hyperparameters import (
    COMPILE_DEBUG_VARIABLE,
    COMPILE_VARIABLE,
    MIXED_PRECISION_VARIABLE,
)

_DYNAMO_OFF = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")  # torch's own variables


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """The requests that apply to this process."""

    compiles: bool = False
    mixes_precision: bool = False
    debug_folder: str = ""  # folder for torch.compile's logs; empty for no logs
    switched_off_by: str = ""  # the user's environment variable that turns torch.compile off

    @property
    def any(self) -> bool:
        """Whether there is any request."""
        return self.compiles or self.mixes_precision


def read_wishes(environment: Mapping[str, str]) -> Wishes:
    """Return the requests in the environment variables of a process."""
    off = next((name for name in _DYNAMO_OFF if environment.get(name, "0").lower() not in ("", "0", "false")), "")
    compiles = environment.get(COMPILE_VARIABLE) == "1"
    return Wishes(
        compiles=compiles,
        mixes_precision=environment.get(MIXED_PRECISION_VARIABLE) == "1",
        debug_folder=environment.get(COMPILE_DEBUG_VARIABLE, "") if compiles else "",
        switched_off_by=off,
    )
