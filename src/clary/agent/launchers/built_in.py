"""The program of a built-in algorithm, which the image brings: XGBoost, on one host or several.

Where: used if the image is that of XGBoost, the job names no program, and PATH has no `train`.
"""

from __future__ import annotations

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.launchers.context import LaunchContext
from clary.agent.launchers.shim_files import RANK_SHIM
from clary.contract.settings.built_in_algorithms import is_xgboost, pickles_model

_PROGRAM = "clary.train.boosting"
_PICKLE_OPTION = "--pickle"
OPEN_TRACKER = (
    "this host shares its machine's network. XGBoost's tracker asks for no proof: a client that reaches it can join "
    "the training and change the model"
)


def is_wanted(context: LaunchContext) -> bool:
    """Whether the job asks for the image's algorithm, and the environment has no `train` of its own."""
    plan = context.plan
    return plan.program is None and context.train_program is None and is_xgboost(plan.environment.image)


def build(context: LaunchContext) -> tuple[ProcessSpec, ...]:
    """Return the single process of this host."""
    options = (_PICKLE_OPTION,) if pickles_model(context.plan.environment.image) else ()
    return (context.process((context.python, RANK_SHIM, "-m", _PROGRAM, str(context.inside.root), *options)),)


def notes(context: LaunchContext) -> tuple[str, ...]:
    """Return notes: that the algorithm runs; a tracker that others on a shared network can reach."""
    is_open = len(context.peers) > 1 and not context.has_own_network
    return (
        "the job names no program: SageMaker's built-in algorithm XGBoost runs",
        *((OPEN_TRACKER,) if is_open else ()),
    )
