"""Treatment of the members that name input data. `create_table` includes these entries in its table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clary.control.jobs.members.member import Use, honoured, not_here, refused, warned, without_effect

CHANNEL = 1  # index of the channel in `Use.around`


def with_modes(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a request with TrainingInputMode in channels without InputMode; unchanged if the request lacks it."""
    default = (request.get("AlgorithmSpecification") or {}).get("TrainingInputMode")
    channels = request.get("InputDataConfig")
    if default is None or not channels:
        return request
    return {**request, "InputDataConfig": [{"InputMode": default, **channel} for channel in channels]}


def _is_in(mode: str, use: Use) -> bool:
    """Whether the channel that contains a member has an input mode."""
    return bool(use.around[CHANNEL].get("InputMode", "File") == mode)


def _is_shuffled_for_nothing(use: Use) -> bool:
    """Whether a shuffle has no effect: it changes neither the order of a pipe nor the share of a host."""
    source = (use.holder.get("DataSource") or {}).get("S3DataSource") or {}
    return not _is_in("Pipe", use) and source.get("S3DataDistributionType") != "ShardedByS3Key"


def _is_recordio_outside_of_pipe(use: Use) -> bool:
    return use.value == "RecordIO" and not _is_in("Pipe", use)


def _is_of_file_system(use: Use) -> bool:
    return bool((use.holder.get("DataSource") or {}).get("FileSystemDataSource"))


CHANNELS = (
    honoured("InputDataConfig[].ChannelName", "folder below /opt/ml/input/data; unique"),
    honoured(
        "InputDataConfig[].DataSource.S3DataSource.S3DataType",
        "S3Prefix and ManifestFile",
        refused(
            "Channel {item!r}: S3DataType {value} is not supported; use S3Prefix.",
            when="AugmentedManifestFile and Converse",
            holds=lambda use: use.value not in ("S3Prefix", "ManifestFile"),
        ),
        refused(
            "Channel {item!r}: FastFile takes S3Prefix only.",
            when="ManifestFile in FastFile mode",
            holds=lambda use: use.value == "ManifestFile" and _is_in("FastFile", use),
        ),
    ),
    honoured("InputDataConfig[].DataSource.S3DataSource.S3Uri", "what is fetched; something must be there"),
    honoured("InputDataConfig[].DataSource.S3DataSource.S3DataDistributionType", "all objects, or each host's share"),
    without_effect(
        "InputDataConfig[].DataSource.S3DataSource.AttributeNames",
        "channel {item}: AttributeNames has no effect: it belongs to AugmentedManifestFile",
    ),
    honoured("InputDataConfig[].DataSource.S3DataSource.InstanceGroupNames", "groups whose hosts get the channel"),
    without_effect(
        "InputDataConfig[].DataSource.S3DataSource.ModelAccessConfig",
        "channel {item}: ModelAccessConfig has no effect: S3Uri is read as it is, and no licence is asked for",
    ),
    without_effect(
        "InputDataConfig[].DataSource.S3DataSource.HubAccessConfig",
        "channel {item}: HubAccessConfig has no effect: there are no hubs here, and S3Uri is read as it is",
    ),
    honoured("InputDataConfig[].DataSource.FileSystemDataSource.FileSystemId", "a folder that settings name"),
    honoured(
        "InputDataConfig[].DataSource.FileSystemDataSource.FileSystemAccessMode", "ro, or rw where settings allow it"
    ),
    honoured(
        "InputDataConfig[].DataSource.FileSystemDataSource.FileSystemType",
        "FSxLustre: the first part of DirectoryPath is the mount name",
    ),
    honoured("InputDataConfig[].DataSource.FileSystemDataSource.DirectoryPath", "folder below that of FileSystemId"),
    not_here(
        "InputDataConfig[].DataSource.DatasetSource",
        "Channel {item!r} needs exactly one of S3DataSource and FileSystemDataSource; it has DatasetSource.",
    ),
    honoured("InputDataConfig[].ContentType", "in inputdataconfig.json"),
    honoured(
        "InputDataConfig[].CompressionType",
        "Gzip: objects are unpacked",
        warned(
            "channel {item}: CompressionType {value} has no effect on a file system: files are as they are",
            when="Gzip on a file system",
            holds=lambda use: use.value != "None" and _is_of_file_system(use),
        ),
    ),
    honoured(
        "InputDataConfig[].RecordWrapperType",
        "RecordIO in Pipe mode: each object is a record",
        warned(
            "channel {item}: RecordWrapperType RecordIO has no effect outside of Pipe mode: files are as they are",
            when="RecordIO outside of Pipe mode",
            holds=_is_recordio_outside_of_pipe,
        ),
    ),
    honoured(
        "InputDataConfig[].InputMode",
        "File, and Pipe; TrainingInputMode where a channel names none",
        refused(
            "Channel {item!r}: Pipe reads objects of an S3DataSource, and a file system is a folder: use File.",
            when="Pipe on a file system",
            holds=lambda use: use.value == "Pipe" and _is_of_file_system(use),
        ),
        warned(
            "channel {item}: FastFile has no effect on a file system: it is read where it is mounted",
            when="FastFile on a file system",
            holds=lambda use: use.value == "FastFile" and _is_of_file_system(use),
        ),
        warned(
            "channel {item}: FastFile is fetched whole before the start, like File",
            when="FastFile",
            holds=lambda use: use.value == "FastFile",
        ),
    ),
    honoured(
        "InputDataConfig[].ShuffleConfig",
        "in Pipe mode: the order of objects in each epoch; with ShardedByS3Key: which host gets which",
        warned(
            "channel {item}: ShuffleConfig has no effect outside of Pipe mode without ShardedByS3Key: every host "
            "gets all files, and a folder has no order",
            when="outside of Pipe mode, unless ShardedByS3Key",
            holds=_is_shuffled_for_nothing,
        ),
    ),
)
