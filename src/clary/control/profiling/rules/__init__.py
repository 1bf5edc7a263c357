"""The built-in profiler rules, by the names that clients use."""

from __future__ import annotations

from collections.abc import Mapping

from clary.control.profiling.rule import ProfilerRule
from clary.control.profiling.rules.bottlenecks import CPUBottleneck, IOBottleneck
from clary.control.profiling.rules.gpus import BatchSize, GPUMemoryIncrease, LoadBalancing, LowGPUUtilization
from clary.control.profiling.rules.steps import Dataloader, MaxInitializationTime, StepOutlier
from clary.control.profiling.rules.usage import OverallSystemUsage

RULES: Mapping[str, type[ProfilerRule]] = {
    rule.name(): rule
    for rule in (
        BatchSize,
        CPUBottleneck,
        Dataloader,
        GPUMemoryIncrease,
        IOBottleneck,
        LoadBalancing,
        LowGPUUtilization,
        MaxInitializationTime,
        OverallSystemUsage,
        StepOutlier,
    )
}

__all__ = ["RULES"]
