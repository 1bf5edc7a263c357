"""Folders and JSON files of `/opt/ml`, as the program expects them.

Where: the supervisor writes them before code and channels are fetched. `tree` is the folder in the agent's view,
`inside` the same folder in the program's view.
Source: SageMaker developer guide, "How Amazon SageMaker Provides Training Information"; resourceconfig.json as observed
on the service in 2025 (with `topology`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from clary.base.beneath import Folder
from clary.contract.launch_plan import Channel, HostPlan, Isolation, LaunchPlan
from clary.contract.ml_tree import OPT_ML, MlTree
from clary.contract.step_counts import FOLDER as STEP_COUNTS_FOLDER
from clary.contract.step_records import FOLDER as STEPS_FOLDER
from clary.contract.training_values import STATUS_TOKEN_FILE, status_token

LOOPBACK = "lo"

# Default paths for those structures of the request that give no path.
_LOCAL_PATHS = {
    "debughookconfig": "output/tensors",
    "tensorboardoutputconfig": "output/tensorboard",
    "checkpointconfig": "checkpoints",
    "profilerconfig": "output/profiler",
}


def inside_tree(plan: LaunchPlan, tree: MlTree) -> MlTree:
    """Return the tree in the program's view: at `/opt/ml` in a namespace, else where the agent built it."""
    return MlTree(OPT_ML) if plan.isolation is Isolation.NAMESPACES else tree


def run_folder(tree: MlTree) -> Path:
    """Return the folder by which a launcher and its ranks exchange files; never uploaded."""
    return tree.root / ".clary"


def errors_folder(tree: MlTree) -> Path:
    """Return the folder in which ranks record the errors that ended them; see `clary_rank`."""
    return run_folder(tree) / "errors"


def steps_folder(tree: MlTree) -> Path:
    """Return the folder in which ranks record the times of their steps; see `contract.step_records`."""
    return tree.root.joinpath(*STEPS_FOLDER)


def step_counts_folder(tree: MlTree) -> Path:
    """Return the folder in which hooks record their step counts; see `contract.step_counts`."""
    return tree.root.joinpath(*STEP_COUNTS_FOLDER)


def profiles_folder(tree: MlTree) -> Path:
    """Return the folder for requests for profiles and for the ranks' profiles; see `contract.deep_profiles`."""
    return run_folder(tree) / "profiles"


def status_token_file(tree: MlTree) -> Path:
    """Return the file with the token for the service's endpoint to which a program posts its progress."""
    return tree.root.joinpath(*STATUS_TOKEN_FILE)


def network_interface(plan: LaunchPlan) -> str:
    """Return the name of the network interface that connects the job's hosts."""
    return plan.network.interface if plan.isolation is Isolation.NAMESPACES else LOOPBACK


def channels_of(plan: LaunchPlan, host: HostPlan) -> tuple[Channel, ...]:
    """Return the channels that `host` gets."""
    return tuple(c for c in plan.channels if not c.instance_groups or host.instance_group in c.instance_groups)


def host_names(plan: LaunchPlan) -> list[str]:
    """Names of the job's hosts as scripts get them: sorted as text, so algo-10 precedes algo-2."""
    return sorted(host.name for host in plan.hosts)


def resource_config(plan: LaunchPlan, host: HostPlan) -> dict[str, Any]:
    """Return the content of resourceconfig.json."""
    groups: dict[str, dict[str, Any]] = {}
    for member in plan.hosts:
        group = groups.setdefault(
            member.instance_group,
            {"hosts": [], "instance_group_name": member.instance_group, "instance_type": member.instance_type},
        )
        group["hosts"] = sorted([*group["hosts"], member.name])
    return {
        "current_group_name": host.instance_group,
        "current_host": host.name,
        "current_instance_type": host.instance_type,
        "hosts": host_names(plan),
        "instance_groups": list(groups.values()),
        "network_interface_name": network_interface(plan),
        "topology": None,
    }


def input_data_config(plan: LaunchPlan, host: HostPlan) -> dict[str, dict[str, str]]:
    """Return the content of inputdataconfig.json: one entry per channel."""
    return {channel.name: _channel_entry(channel) for channel in channels_of(plan, host)}


def config_documents(plan: LaunchPlan, inside: MlTree) -> dict[str, Any]:
    """Return file name -> content of debughookconfig and similar files, with LocalPath filled in."""
    documents = {}
    for stem, document in plan.config_documents.items():
        if stem in _LOCAL_PATHS and isinstance(document, Mapping):
            default = str(inside.root / _LOCAL_PATHS[stem])
            local_path = str(document.get("LocalPath") or default)
            documents[stem] = {**document, "LocalPath": relocated(local_path, inside)}
        else:
            documents[stem] = document
    return documents


def relocated(path: str, inside: MlTree) -> str:
    """Return `path` with a leading `/opt/ml` replaced by the root of the tree in the program's view."""
    pure = PurePosixPath(path)
    return str(inside.root / pure.relative_to(OPT_ML)) if pure.is_relative_to(OPT_ML) else path


def make_folders(tree: MlTree) -> None:
    """Make the folders of `tree` that every job has; may be repeated.

    State after failure: folders that were made stay.
    Raises: OSError, for example for a full disk.
    """
    _make(tree, _folders_of_every_job(tree))


def write_tree(plan: LaunchPlan, host: HostPlan, tree: MlTree) -> None:
    """Make every folder of `tree` and write its configuration files; may be repeated.

    Args:
        plan: of the attempt.
        host: of the tree.
        tree: in the agent's view; its root is created if missing.
    State after failure: written files stay; the next call writes the other files.
    Raises: OSError, for example for a full disk.
    """
    inside = inside_tree(plan, tree)
    _make(tree, (*_folders_of_every_job(tree), *(tree.channel(one.name) for one in channels_of(plan, host))))
    token = status_token(plan.agent_token, job=plan.job_name, attempt=plan.attempt, host=host.name)
    with Folder.at(tree.root) as root:
        with root.folder(str(tree.config.relative_to(tree.root))) as config:
            _write(config, "hyperparameters", dict(plan.hyperparameters))
            _write(config, "resourceconfig", resource_config(plan, host))
            _write(config, "inputdataconfig", input_data_config(plan, host))
            for stem, document in config_documents(plan, inside).items():
                _write(config, stem, document)
        root.write("/".join(STATUS_TOKEN_FILE), token.encode("ascii"))


def _make(tree: MlTree, folders: Sequence[Path]) -> None:
    with Folder.at(tree.root, create=True) as root:
        for folder in folders:
            root.folder(str(folder.relative_to(tree.root)), create=True).close()


def _folders_of_every_job(tree: MlTree) -> Sequence[Path]:
    return (
        tree.config,
        tree.data,
        tree.model,
        tree.output_data,
        tree.intermediate,
        tree.output / "metrics" / "sagemaker",
        tree.checkpoints,
        tree.code,
        run_folder(tree) / "home",
        run_folder(tree) / "errors",
        steps_folder(tree),
        step_counts_folder(tree),
        profiles_folder(tree),
    )


def _channel_entry(channel: Channel) -> dict[str, str]:
    entry = {} if channel.content_type is None else {"ContentType": channel.content_type}
    return entry | {
        "RecordWrapperType": channel.record_wrapper,
        "S3DistributionType": channel.s3_data_distribution,
        "TrainingInputMode": channel.input_mode.value,
    }


def _write(config: Folder, stem: str, document: Any) -> None:
    # ASCII escapes can encode every string, even half surrogate pairs, and are parsed to the same value.
    config.write(f"{stem}.json", json.dumps(document, ensure_ascii=True).encode("ascii"))
