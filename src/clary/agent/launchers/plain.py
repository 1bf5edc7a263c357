"""Launcher of the program, once per host and without ranks.

Source: sagemaker-training 5.1.4 `process.ProcessRunner`: `python train.py --arguments` in the code folder.
"""

from __future__ import annotations

from clary.agent.host.sandbox import ProcessSpec
from clary.agent.launchers import jax_world
from clary.agent.launchers.context import LaunchContext


def build(context: LaunchContext) -> tuple[ProcessSpec, ...]:
    """Return the single process of this host."""
    return (context.process(context.program(), additions=jax_world.host_variables(context)),)
