"""Profiling windows on a running job, as requested by UpdateTrainingJob's ProfilerConfig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clary.contract.deep_profiles import window_of
from clary.control.jobs.training_job import TrainingJob
from clary.control.services.call import Services

BY_UPDATE = "asked for by UpdateTrainingJob"


async def follow(services: Services, job: TrainingJob, config: Mapping[str, Any] | None) -> None:
    """Begin the window that an update requests; end the running window if it requests no window.

    An update requests no window if it disables the profiler, or has ProfilingParameters without a window. An update
    that has neither DisableProfiler nor ProfilingParameters changes nothing.

    If the requested step has passed already, the window begins at the next step.

    Args:
        config: ProfilerConfig of the update; None if it has no ProfilerConfig.
    Raises: WireError while a different profile of the job is being taken.
    """
    if config is None or job.is_terminal:
        return
    window = window_of(config)
    if window is not None:
        await services.profiles.ask(job, window, reason=BY_UPDATE, waits=True)
    elif config.get("DisableProfiler") or "ProfilingParameters" in config:
        await services.profiles.cancel(job)
