"""The image's own `train`: containers whose ENTRYPOINT takes that argument, and AWS's sagemaker-training toolkit.

Where: used if the job names no program whose code it gives (a container of the user's own), or if its Environment has
CLARY_LAUNCHER=toolkit. In both cases PATH must have a `train`.
Source: SageMaker developer guide: `docker run IMAGE train`.
"""

from __future__ import annotations

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.launchers.context import LaunchContext, no_program_error

LAUNCHER_VARIABLE = "CLARY_LAUNCHER"
LAUNCHER_VALUE = "toolkit"


def is_asked_for(context: LaunchContext) -> bool:
    """Whether the user requests the image's `train` although Clary could launch the program itself."""
    return context.plan.user_environment.get(LAUNCHER_VARIABLE) == LAUNCHER_VALUE


def build(context: LaunchContext) -> tuple[ProcessSpec, ...]:
    """Return the single process of this host, without Clary's SM_*, which the program derives itself.

    Raises: AgentError if the environment has no `train`.
    """
    if context.train_program is None:
        raise no_program_error(context.plan)
    process = context.process((context.train_program,))
    kept = {name: value for name, value in process.environment.items() if not name.startswith("SM_")}
    if not context.is_isolated:
        kept["SM_STUDIO_LOCAL_MODE"] = "true"  # then the toolkit does not wait for host names that do not resolve here
    kept |= {name: value for name, value in context.plan.user_environment.items() if name.startswith("SM_")}
    return (
        ProcessSpec(
            argv=process.argv,
            environment=kept,
            working_folder=process.working_folder,
            rank=None,
            local_rank=0,
        ),
    )


def notes(context: LaunchContext) -> tuple[str, ...]:
    """Return the note that the image's own program runs instead of Clary's launchers."""
    return (f"the image's own {context.train_program} runs the job; Clary's launchers are not used",)
