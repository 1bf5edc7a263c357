"""Saves in the background: a save is planned and copied to host memory at once, written by a thread, finished later.

Where: scripts call `async_save`, then `maybe_finalize_async_calls` repeatedly, and with `blocking=True` at the end of
the program: an unfinished save is no checkpoint. Ranks communicate in these calls alone, never in the thread.
Source: SageMaker developer guide, "Checkpointing using SMP", asynchronous.
"""

from __future__ import annotations

import atexit
import functools
import io
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import SavePlan, SavePlanner
from torch.distributed.checkpoint.planner import WriteItemType

from clary.train.parallel.fsdp.checkpoint.saving import Saving, plan_saving

# Limit of the wait for this rank's files; below gloo's timeout of 1800 s, so that the other ranks get the reason.
WRITE_LIMIT_S = 1500.0


class StagedPlanner(SavePlanner):
    """Planner that gives a writer copies, which training does not change; its planning methods raise errors.

    Args:
        staged: the copies, by the item's index.
    """

    def __init__(self, staged: dict[Any, Any]) -> None:
        self._staged = staged

    def resolve_data(self, write_item: Any) -> Any:
        """Return the copy of an item's tensor or bytes."""
        return self._staged[write_item.index]

    def set_up_planner(self, *_: Any, **__: Any) -> None:
        """Refuse the call, since planning has ended."""
        raise RuntimeError("this save is planned already")

    def create_local_plan(self) -> SavePlan:
        """Refuse the call, since planning has ended."""
        raise RuntimeError("this save is planned already")

    def create_global_plan(self, all_plans: list[SavePlan]) -> Any:
        """Refuse the call, since planning has ended."""
        raise RuntimeError("this save is planned already")

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Refuse the call, since planning has ended."""
        raise RuntimeError("this save is planned already")


@dataclass
class PyTorchDistSaveShardedStrategy:
    """Strategy with which a rank writes its shards.

    Args:
        thread_count: number of files that the rank writes concurrently.
    """

    thread_count: int = 1


@dataclass(eq=False)
class _Call:
    """One save under way on this rank."""

    number: int
    path: str
    saving: Saving
    _told: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A daemon thread: at exit Python joins other threads without a limit, but `_finish_writing` has one.
        self._thread = threading.Thread(target=self._write, name=f"clary-save-{self.number}", daemon=True)
        _writing[:] = [*(one for one in _writing if one.is_alive()), self._thread]
        self._thread.start()
        _wait_at_exit()

    @property
    def is_written(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Any:
        """Wait for the thread's `write`; return its result, or raise its error.

        Raises: TimeoutError if the thread does not end within the limit.
        """
        self._thread.join(WRITE_LIMIT_S)
        if self._thread.is_alive():
            raise TimeoutError(
                f"{self.path} was still being written {WRITE_LIMIT_S:g} s after the wait for it began: the "
                "storage does not answer"
            )
        if isinstance(self._told[0], BaseException):
            raise self._told[0]
        return self._told[0]

    def _write(self) -> None:
        try:
            with torch.no_grad():
                self._told.append(self.saving.write())
        except BaseException as error:  # noqa: BLE001 - raised by `result`, on the thread that finishes
            self._told.append(error)


_writing: list[threading.Thread] = []


def _finish_writing() -> None:
    """Wait for the writing threads when the program ends."""
    deadline_s = time.monotonic() + WRITE_LIMIT_S
    for thread in _writing:
        thread.join(max(deadline_s - time.monotonic(), 0.0))


@functools.cache
def _wait_at_exit() -> None:
    atexit.register(_finish_writing)


class AsyncCallsQueue:
    """Queue of the saves under way, in the same order on all ranks."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._num_calls = 0

    def schedule(self, saving: Saving, path: str) -> int:
        """Start the thread that writes a save; return the number of the save.

        Raises: ValueError if a save to this path is under way.
        """
        self.check(path)
        self._num_calls += 1
        self._calls.append(_Call(self._num_calls, path, saving))
        return self._num_calls

    def check(self, path: str) -> None:
        """Check that no save to a path is under way.

        Raises: ValueError if one is.
        """
        if any(call.path == path for call in self._calls):
            raise ValueError(
                f"async_save: an earlier save to {path} is not finished: call maybe_finalize_async_calls("
                "blocking=True) first, or save to another path"
            )

    def get_num_unfinalized_calls(self) -> int:
        """Return the number of saves under way."""
        return len(self._calls)

    def maybe_finalize_async_calls(
        self, blocking: bool = False, process_group: Any = None, skip_sync: bool = False
    ) -> list[int]:
        """Finish saves that all ranks have written: make them checkpoints. Every rank calls it.

        Args:
            blocking: wait for all saves under way.
            process_group: the ranks that save; None is all ranks.
            skip_sync: finish the saves that this rank has written, without first agreeing with the other ranks on their
                number, but wait for the other ranks' files. All ranks must then finish the same saves, by repeated
                calls.

        Returns: the numbers of the finished saves.
        State after failure: the failed save is removed from the queue; later saves stay.
        Raises: CheckpointError on all ranks if any rank failed to write.
        """
        count = len(self._calls)
        if not blocking:
            count = next((at for at, call in enumerate(self._calls) if not call.is_written), count)
            if not skip_sync and dist.is_initialized():
                count = _least(count, process_group)
        finished = []
        for _ in range(count):
            call = self._calls.pop(0)
            call.saving.finish(call.result)
            finished.append(call.number)
        return finished

    def close(self) -> None:
        """Finish all saves that are under way."""
        self.maybe_finalize_async_calls(blocking=True)


_queue = AsyncCallsQueue()


@torch.no_grad()
def async_save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: Any = None,
    storage_writer: Any = None,
    planner: Any = None,
    process_group: Any = None,
    coordinator_rank: int = 0,
    queue: AsyncCallsQueue | None = None,
    sharded_strategy: PyTorchDistSaveShardedStrategy | None = None,
    wait_error_handling: bool = True,
    force_check_all_plans: bool = True,
    s3_region: str | None = None,
    s3client_config: Any = None,
) -> int:
    """Save as `saving.save` does, but return once all ranks have copied their parts to host memory.

    Every rank of the group calls it.

    Args:
        queue: queue that finishes the save; None is the common queue.
        sharded_strategy: supplies the number of threads of a rank; None is one thread.

    Returns: the number of the save in its queue.
    Raises: ValueError if a save to this path is under way; CheckpointError if planning or copying failed on
        any rank.
    """
    del wait_error_handling, force_check_all_plans
    queue = _queue if queue is None else queue
    path = str(checkpoint_id if checkpoint_id is not None else getattr(storage_writer, "path", ""))
    queue.check(path)
    saving = plan_saving(
        state_dict,
        checkpoint_id=checkpoint_id,
        storage_writer=storage_writer,
        planner=planner,
        process_group=process_group,
        coordinator_rank=coordinator_rank,
        s3_region=s3_region,
        s3client_config=s3client_config,
        num_threads=1 if sharded_strategy is None else sharded_strategy.thread_count,
    )
    saving.stage(lambda plan, planner: StagedPlanner({item.index: _copy(planner, item) for item in plan.items}))
    return queue.schedule(saving, path)


def maybe_finalize_async_calls(blocking: bool = True, process_group: Any = None) -> list[int]:
    """Finish saves of the common queue; see `AsyncCallsQueue.maybe_finalize_async_calls`."""
    return _queue.maybe_finalize_async_calls(blocking=blocking, process_group=process_group)


def _copy(planner: Any, item: Any) -> Any:
    found = planner.resolve_data(item)
    if item.type == WriteItemType.BYTE_IO:
        return io.BytesIO(found.getvalue())
    # Tensors on the host are copied too: the optimizer changes them in place.
    return torch.empty_like(found, device="cpu", memory_format=torch.contiguous_format).copy_(found)


def _least(count: int, process_group: Any) -> int:
    device = "cuda" if dist.get_backend(process_group) == "nccl" else "cpu"
    found = torch.tensor([count], device=device)
    dist.all_reduce(found, dist.ReduceOp.MIN, group=process_group)
    return int(found.item())
