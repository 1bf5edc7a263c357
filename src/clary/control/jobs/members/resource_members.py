"""Treatment of the members that name hosts. `create_table` includes these entries."""

from __future__ import annotations

from clary.control.jobs.members.encryption import encryption
from clary.control.jobs.members.member import Use, honoured, is_set, not_here, warned, without_effect

GB = 1_000_000_000


def _is_larger_than_the_disk(use: Use) -> bool:
    free = use.site.free_disk_bytes
    return free is not None and use.value * GB > free


RESOURCES = (
    honoured(
        "ResourceConfig.InstanceType",
        "shape of the hosts: processors, memory, GPUs; names that nobody knows get a generic one and a warning",
    ),
    honoured("ResourceConfig.InstanceCount", "hosts of the job"),
    honoured(
        "ResourceConfig.VolumeSizeInGB",
        "returned by DescribeTrainingJob; hosts share the disk of the machine that they are on",
        warned(
            "VolumeSizeInGB {value}: no disk is set aside for it: hosts share this machine's disk, which has less free",
            when="more than the machine's disk has free; with engines slurm and boxes nobody knows",
            holds=_is_larger_than_the_disk,
        ),
    ),
    encryption("ResourceConfig.VolumeKmsKeyId", "what hosts write lies on {place.disk} as it is"),
    honoured(
        "ResourceConfig.KeepAlivePeriodInSeconds",
        "hosts wait that long for a matching job",
        warned(
            "KeepAlivePeriodInSeconds has no effect on spot capacity, which is given back when the job ends",
            when="with EnableManagedSpotTraining",
            holds=lambda use: is_set(use) and bool(use.request.get("EnableManagedSpotTraining")),
        ),
    ),
    honoured("ResourceConfig.InstanceGroups[].InstanceType", "shape of the group's hosts"),
    honoured("ResourceConfig.InstanceGroups[].InstanceCount", "hosts of the group"),
    honoured("ResourceConfig.InstanceGroups[].InstanceGroupName", "name of the group; unique"),
    without_effect(
        "ResourceConfig.TrainingPlanArn",
        "TrainingPlanArn has no effect: nobody reserves capacity here, and the job waits for hosts like every other",
    ),
    without_effect(
        "ResourceConfig.InstancePlacementConfig",
        "InstancePlacementConfig has no effect: there are no UltraServers, and hosts are placed where there is room",
    ),
    honoured(
        "ResourceConfig.InstancePreferences[].InstanceType",
        "the first that can run here is selected, and told in SelectedInstanceType",
    ),
    honoured("ResourceConfig.InstancePreferences[].InstanceCount", "hosts of the job, if it is selected"),
    without_effect(
        "ResourceConfig.InstancePreferences[].TrainingPlanArns",
        "TrainingPlanArns has no effect: nobody reserves capacity here",
    ),
    not_here(
        "ResourceConfig.SelectedInstanceType",
        "ResourceConfig.SelectedInstanceType is read-only and isn't accepted in CreateTrainingJob requests.",
    ),
    not_here(
        "ResourceConfig.SelectedInstanceCount",
        "ResourceConfig.SelectedInstanceCount is read-only and isn't accepted in CreateTrainingJob requests.",
    ),
)
