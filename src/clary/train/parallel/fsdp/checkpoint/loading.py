"""Reading of distributed checkpoints into a state dict with existing tensors.

Source: SageMaker developer guide, "Checkpointing using SMP".
"""

from __future__ import annotations

from typing import Any

import torch.distributed.checkpoint as dcp

from clary.train.parallel.fsdp.checkpoint.storage import make_reader


def load(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: Any = None,
    storage_reader: Any = None,
    planner: Any = None,
    process_group: Any = None,
    check_keys_matched: bool = True,
    coordinator_rank: int = 0,
    s3_region: str | None = None,
    s3client_config: Any = None,
) -> None:
    """Load a checkpoint into a state dict, in place. Every rank of the group calls it.

    Sharded tensors may be sharded in another way than when they were saved; local states (`sm_state_dict_type`) load
    only with the same degrees.

    Args:
        checkpoint_id: a folder, or a path s3://bucket/prefix.
        check_keys_matched: False leaves values unchanged if the checkpoint lacks their keys.
        coordinator_rank: accepted but unused; the first rank of the group plans.
        s3_region: region of the bucket; None is boto3's default from environment and configuration.
        s3client_config: a botocore Config.

    Raises: torch's CheckpointException on all ranks, naming the failed ranks, if there is no finished checkpoint, a key
        is missing or a size differs. ValueError if neither a path nor a reader is given.
    """
    del coordinator_rank
    if storage_reader is None:
        storage_reader = make_reader(checkpoint_id, s3_region=s3_region, s3client_config=s3client_config)
    elif checkpoint_id is not None:
        storage_reader.reset(checkpoint_id)
    if planner is None:
        planner = dcp.DefaultLoadPlanner(allow_partial_load=not check_keys_matched)
    dcp.load(
        state_dict,
        storage_reader=storage_reader,
        planner=planner,
        process_group=process_group,
    )
