"""Pure choice of a rank's next action among several ready actions.

Where: `server` passes all ready actions, and runs the chosen action; `tf_parallel.graphs.order` simulates with it.

    interleaved   backward passes first, since they free activations; then forward passes under way; then new
              microbatches
    simple        forward passes first, then new microbatches; backward passes if no forward pass can run or begin
    _only_forward as `simple`

Among equals, the lowest microbatch comes first, then resumed actions, then the lowest caller and its earliest call.
`active_microbatches` bounds the number of microbatches that have begun and not ended.
Source: SageMaker developer guide, "pipeline execution".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class Phase(IntEnum):
    """The pass to which a ready action belongs."""

    START = 0
    FORWARD = 1
    BACKWARD = 2


@dataclass(frozen=True, order=True)
class Ready:
    """An action that this rank can run now; equal on ranks that run the same actions.

    Args:
        caller: pipeline rank that requested it, -1 for the step's own function.
        number: index of the call among the calls of its caller and microbatch.
        is_resumed: whether it was suspended and can continue.
    """

    phase: Phase
    microbatch: int
    caller: int = -1
    number: int = 0
    is_resumed: bool = False


@dataclass(frozen=True)
class Decision:
    """The chosen action, or None, and the reason."""

    chosen: Ready | None
    reason: str


_ORDER = {
    "interleaved": (Phase.BACKWARD, Phase.FORWARD, Phase.START),
    "simple": (Phase.FORWARD, Phase.START, Phase.BACKWARD),
    "_only_forward": (Phase.FORWARD, Phase.START, Phase.BACKWARD),
}


def choose(policy: str, ready: Sequence[Ready], *, num_active: int, max_active: int) -> Decision:
    """Choose among the ready actions.

    Args:
        policy: value of the configuration key `pipeline`; see the module's docstring.
        num_active: number of microbatches that have begun on this rank and not ended.
        max_active: value of the configuration key `active_microbatches`.
    """
    for phase in _ORDER[policy]:
        if phase is Phase.START and num_active >= max_active:
            continue
        if candidates := [one for one in ready if one.phase is phase]:
            chosen = min(candidates, key=lambda one: (one.microbatch, not one.is_resumed, one.caller, one.number))
            return Decision(chosen, f"{policy}: {phase.name.lower()} first, then the lowest microbatch")
    if ready:
        return Decision(None, f"{num_active} microbatches are active, the most that may be")
    return Decision(None, "nothing is ready")
