"""Writing of distributed checkpoints in three phases: all ranks plan, each writes its data, all finish.

Where: `save` runs the three phases in a row; `asynchronous` runs the second in a thread. Planner, writer and format are
those of torch.distributed.checkpoint. The writing does not communicate, so a writing thread never interferes with
collectives of training.

[Note: whole or not] The file `.metadata` makes a folder a checkpoint. It is renamed into place last, after all ranks
have written; our writers remove an older `.metadata` before any rank overwrites its data. An interrupted save leaves a
folder that `load` refuses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.stateful import Stateful

from clary.train.checkpoint.ranks import Ranks
from clary.train.parallel.errors import CheckpointError
from clary.train.parallel.fsdp.checkpoint.slice_groups import group_of, is_saved_by_another
from clary.train.parallel.fsdp.checkpoint.storage import make_writer

_under_way: set[str] = set()  # paths of this process's saves


@dataclass
class Saving:
    """A planned save on one rank. `write` needs no other rank; `finish` needs all ranks."""

    writer: Any
    planner: Any
    plan: Any
    metadata: Any  # set on the coordinator
    ranks: Ranks
    path: str

    def stage(self, copy: Callable[[Any, Any], Any]) -> None:
        """Copy the data that this rank will write, so that training may change the original. All ranks call it.

        Args:
            copy: function of the plan and its planner that returns a planner with copies.

        Raises: CheckpointError on all ranks if any rank failed, which ends the save.
        """

        def part() -> None:
            self.planner = copy(self.plan, self.planner)

        try:
            self.ranks.map("copying a distributed checkpoint", part, lambda parts: parts)
        except BaseException:
            _under_way.discard(self.path)
            raise

    def write(self) -> Any:
        """Write this rank's data; returns the results to pass to `finish`.

        Raises: OSError naming a missing part: torch's writer does not report that one of its threads failed.
        """
        results = self.writer.write_data(self.plan, self.planner).wait()
        written = {one.index for one in results}
        missing = [str(item.index.fqn) for item in self.plan.items if item.index not in written]
        if missing:
            raise OSError(
                f"{len(missing)} of {len(self.plan.items)} parts were not written, the first {missing[0]}: the cause "
                "stands above in this rank's log"
            )
        return results

    def finish(self, result: Callable[[], Any]) -> Any:
        """Wait until all ranks have written, then make the folder a checkpoint.

        Args:
            result: returns the result of `write`, or raises its error.

        Returns: the metadata on the coordinator, None elsewhere.
        Raises: CheckpointError on all ranks if any rank failed; there is no checkpoint then.
        """

        def whole(results: list[Any]) -> list[Any]:
            self.writer.finish(self.metadata, results)
            return [None] * len(results)

        try:
            self.ranks.map("finishing a distributed checkpoint", result, whole)
        finally:
            _under_way.discard(self.path)
        return self.metadata


@dataclass
class SavedByAnother(Saving):
    """The save of a rank whose data another rank writes."""

    def stage(self, copy: Callable[[Any, Any], Any]) -> None:
        """Copy nothing."""

    def write(self) -> Any:
        """Write nothing."""
        return []

    def finish(self, result: Callable[[], Any]) -> Any:
        """Call `result`; wait for no other rank."""
        result()
        return None


def plan_saving(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: Any,
    storage_writer: Any,
    planner: Any,
    process_group: Any,
    coordinator_rank: int,
    s3_region: str | None,
    s3client_config: Any,
    num_threads: int = 1,
) -> Saving:
    """Agree with the other ranks on the data that each writes.

    Args: as `save`, and
        planner: None is torch's default.
        num_threads: number of threads that write this rank's data; unused if a writer is given.

    Raises: ValueError if neither a path nor a writer is given, a save to this path is under way, or ranks of the group
        hold different slices; CheckpointError naming the ranks that failed.
    """
    if dist.is_initialized():
        group = group_of(state_dict, process_group)
        if group is not process_group:
            process_group, coordinator_rank = group, min(dist.get_process_group_ranks(group))
        if is_saved_by_another(state_dict):
            ranks = Ranks(process_group, coordinator_rank, CheckpointError)
            return SavedByAnother(storage_writer, planner, None, None, ranks, str(checkpoint_id))
    ranks = Ranks(process_group, coordinator_rank, CheckpointError, "; an earlier one at its path is unchanged")
    if storage_writer is None:
        storage_writer = make_writer(
            checkpoint_id, s3_region=s3_region, s3client_config=s3client_config, num_threads=num_threads
        )
    elif checkpoint_id is not None:
        storage_writer.reset(checkpoint_id)
    path = os.path.normpath(str(getattr(storage_writer, "path", checkpoint_id)))
    if path in _under_way:
        raise ValueError(
            f"an earlier save to {path} is not finished: call maybe_finalize_async_calls(blocking=True) first, or save "
            "to another path"
        )
    planner = DefaultSavePlanner() if planner is None else planner
    made: list[Any] = [None]

    def local() -> Any:
        plain = {key: one.state_dict() if isinstance(one, Stateful) else one for key, one in state_dict.items()}
        planner.set_up_planner(plain, storage_writer.storage_meta(), ranks.is_coordinator)
        storage_writer.set_up_storage_writer(ranks.is_coordinator)
        return storage_writer.prepare_local_plan(planner.create_local_plan())

    def whole(plans: list[Any]) -> list[Any]:
        plans, made[0] = planner.create_global_plan(plans)
        return list(storage_writer.prepare_global_plan(plans))

    plan = planner.finish_plan(ranks.map("planning a distributed checkpoint", local, whole))
    _under_way.add(path)
    ranks.consequence = "; there is none at its path"  # planning has removed an earlier one
    return Saving(storage_writer, planner, plan, made[0], ranks, path)


@torch.no_grad()
def save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: Any = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    coordinator_rank: int = 0,
    wait_error_handling: bool = True,
    force_check_all_plans: bool = True,
    s3_region: str | None = None,
    s3client_config: Any = None,
) -> Any:
    """Save a state dict whose tensors may be sharded over ranks. Every rank of the group calls it.

    Args:
        checkpoint_id: a folder that all ranks share, or a path s3://bucket/prefix.
        storage_writer: used in place of a writer for `checkpoint_id`.
        process_group: the ranks that save; None is all ranks.
        coordinator_rank: global rank; must be in the group.
        wait_error_handling: without effect; `save` always waits for the errors of all ranks.
        force_check_all_plans: without effect; plans are always checked.
        s3_region: region of the bucket; None is boto3's default from environment and configuration.
        s3client_config: a botocore Config.

    State after failure: the new checkpoint is absent; an earlier one at this path is lost unless planning failed.
    Returns: the metadata on the coordinator, None elsewhere.
    Raises: ValueError for an invalid path or rank; CheckpointError on all ranks, naming the failed ranks.
    """
    del wait_error_handling, force_check_all_plans
    saving = plan_saving(
        state_dict,
        checkpoint_id=checkpoint_id,
        storage_writer=storage_writer,
        planner=planner,
        process_group=process_group,
        coordinator_rank=coordinator_rank,
        s3_region=s3_region,
        s3client_config=s3client_config,
    )
    return saving.finish(saving.write)
