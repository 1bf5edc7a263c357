"""ContainerEntrypoint and ContainerArguments, verbatim.

Where: SDK v3's drivers, `@remote` and users' own commands are started by this launcher. No shell is added and no
argument is changed, except on hosts that share this machine's files and have no `/opt/ml`: there `/opt/ml` in arguments
and variables is replaced by the host's own folder.
"""

from __future__ import annotations

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.launchers.context import LaunchContext
from clary.contract.ml_tree import OPT_ML


def build(context: LaunchContext) -> tuple[ProcessSpec, ...]:
    """Return the single process of this host."""
    variables = {name: _relocated(context, value) for name, value in context.variables.items()}
    variables |= context.host_list()
    variables["PYTHONPATH"] = context.python_path(variables.get("PYTHONPATH", ""))
    process = ProcessSpec(
        argv=tuple(_relocated(context, word) for word in context.plan.command or ()),
        environment=variables,
        working_folder=str(context.inside.code),
        rank=None,
        local_rank=0,
    )
    return (process,)


def notes(context: LaunchContext) -> tuple[str, ...]:
    """Return a note if `/opt/ml` in the command or in Environment was replaced."""
    words = (*(context.plan.command or ()), *context.plan.user_environment.values())
    if context.is_isolated or not any(str(OPT_ML) in word for word in words):
        return ()
    return (
        f"hosts share this machine's files: {OPT_ML} in the command and in Environment stands for "
        f"{context.inside.root}; files that name {OPT_ML} themselves (the drivers of SDK v3) will not find it",
    )


def _relocated(context: LaunchContext, word: str) -> str:
    return word if context.is_isolated else word.replace(str(OPT_ML), str(context.inside.root))
