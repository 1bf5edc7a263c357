"""Averaging of gradients over replicas, during the backward pass or after it.

[Note: when a gradient is final] The number of gradients that a parameter gets in a step depends on the model:
microbatches, calls of its module, recomputation. The reducer counts the gradients of each parameter, and considers its
gradient final once the count reaches the largest count of any earlier step. A bucket is sent when all its gradients are
final and all earlier buckets are sent, so all ranks send the same buckets in the same order. At the end, a bucket that
got gradients after it was sent is sent again: so the counts affect the time of sending, never the result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from clary.train.parallel.errors import ParallelError
from clary.train.parallel.reduce.buckets import Bucket, Replicated, fill_buckets
from clary.train.parallel.reduce.hooks import CommunicationHook
from clary.train.parallel.reduce.meeting import Doing, MeetingPoint, Present

_LOG = logging.getLogger(__name__)

# Function that waits for a bucket; returns its means, and for each parameter the number of ranks with a gradient (None
# with a hook, since these numbers are then exchanged at the end).
_Sent = Callable[[], tuple[torch.Tensor, list[float] | None]]


class GradientReducer:
    """Averages the gradients of parameters, whose list is equal on all ranks of their groups.

    Args:
        bucket_bytes: size of a bucket, in bytes.
        overlaps: whether to send buckets between `allow_sending` and `forbid_sending`.
    """

    def __init__(self, parameters: Iterable[Replicated], *, bucket_bytes: int, overlaps: bool = False) -> None:
        self._parameters = list(parameters)
        self._bucket_bytes = bucket_bytes
        self._overlaps = overlaps
        self._hook: CommunicationHook | None = None
        self._hooked_ranks = 0  # number of ranks of the groups whose buckets the hook averages
        self._may_send = False
        self._sent: list[_Sent] = []  # sent buckets, in order
        self._late: set[int] = set()  # buckets that got gradients after they were sent
        self._meeting: Callable[[], Present] | None = None
        self._failure: str | None = None
        self.is_joined = False  # whether ranks may end before others
        self._divides_by_active = False
        self._throws = False
        self._num_steps = 0  # number of the optimizer's steps
        self._has_met = False  # whether ranks have met since the optimizer's last step
        self._num_reductions = 0
        self._seen: dict[int, int] = {}  # number of gradients since the last reduction, by parameter
        self._expected: dict[int, int] = {}  # largest number so far, by parameter
        self._buckets: list[Bucket] = []
        self._num_open: list[int] = []  # by bucket, the number of parameters without final gradient
        self._point: MeetingPoint | None = None
        self._handles: list[Any] = []
        self._fill([one for one in self._parameters if dist.get_world_size(one.group) > 1])

    @property
    def meets(self) -> bool:
        """Whether `reduce` and `settle` meet other ranks; without parameters to average they do nothing."""
        return self._point is not None

    @property
    def has_met(self) -> bool:
        """Whether this rank has met the others since the last step of the optimizer."""
        return self._has_met

    def set_hook(self, hook: CommunicationHook, num_ranks: int) -> None:
        """Set the hook that averages the buckets of groups of `num_ranks` ranks, even if this is one rank.

        Raises: RuntimeError if there is a hook.
        """
        if self._hook is not None:
            raise RuntimeError("register_comm_hook: there is a hook already; a model has one")
        self._hook, self._hooked_ranks = hook, num_ranks
        sizes = [dist.get_world_size(one.group) for one in self._parameters]
        self._fill([one for one, size in zip(self._parameters, sizes, strict=True) if size > 1 or size == num_ranks])

    def _fill(self, parameters: list[Replicated]) -> None:
        """Put parameters into buckets, and track their gradients."""
        self.remove()
        self._buckets = fill_buckets(parameters, self._bucket_bytes)
        if self._buckets:
            widest = max(self._buckets, key=lambda bucket: bucket.num_ranks)  # contains the ranks of all other groups
            self._point = MeetingPoint(widest.group, widest.members[0].parameter.device)
        # all parameters: a bucket that is new is first sent at the end
        self._num_open = [len(bucket.members) for bucket in self._buckets]
        self._handles = self._watch()

    def allow_sending(self) -> None:
        """Announce that gradients until `forbid_sending` are the last before `reduce`."""
        self._may_send = self._overlaps and self._num_reductions > 0

    def forbid_sending(self, *, has_failed: bool) -> None:
        """Stop sending buckets as they become final.

        Args:
            has_failed: whether the step failed. If buckets were sent already, other ranks wait for the remaining
                buckets, so averaging is impossible from then on, and `reduce` raises an error.
        """
        self._may_send = False
        if has_failed and self._sent:
            self._failure = (
                f"a step failed on this rank while {len(self._sent)} of {len(self._buckets)} buckets of gradients were "
                "on their way to the other replicas: start the program again, from a checkpoint"
            )

    def reduce(self) -> None:
        """Replace gradients by their means. All ranks of the groups call it.

        Raises: RuntimeError naming a sparse gradient; torch's error if a rank does not call it; ParallelError if
        replicas are at different steps.
        """
        if self._point is not None:
            self._send_rest(is_empty=False)
            self._finish(spreads=True)

    def settle(self) -> bool:
        """Announce a step of the optimizer, and join a reduction if other ranks reduce.

        All ranks of the groups call it before a step of the optimizer; a rank that has reduced since the last step
        sends no message.

        Returns: whether any rank had gradients.
        Raises: as `reduce`.
        """
        if self._point is None or self._has_met:
            return self._has_met
        self._has_met = True
        present = self._point.begin(Doing.STEPS, self._num_steps)()
        if not present.who(Doing.REDUCES):
            return False
        self._meeting = lambda: present
        self.reduce()
        return True

    def count_step(self) -> None:
        """Count a step of the optimizer, or one that all ranks have skipped."""
        self._num_steps += 1
        self._has_met = False

    def forget(self) -> None:
        """Reset the counts of gradients, after gradients were cleared."""
        if not self._sent:
            self._restart_counts()

    def begin_join(self, *, divides_by_active: bool, throws: bool) -> None:
        """Allow ranks to end before others from now on.

        Args:
            divides_by_active: whether means are over ranks that still have batches.
            throws: whether all ranks raise an error when the first rank ends.
        """
        self.is_joined, self._divides_by_active, self._throws = True, divides_by_active, throws

    def leave_join(self) -> None:
        """Record that all ranks continue together."""
        self.is_joined = self._divides_by_active = self._throws = False

    def end_join(self) -> list[int]:
        """Contribute zeros to the reductions of other ranks until all ranks have called it.

        Returns: number of reductions to which each rank contributed zeros, by group rank.
        Raises: RuntimeError if `throws` was set and other ranks still have batches; errors of `reduce`.
        """
        if self._point is None:
            return [0]
        num_rounds = 0
        while True:
            present = self._point.begin(Doing.HAS_ENDED, self._num_steps)()
            if len(present.who(Doing.HAS_ENDED)) == len(present.doing):
                self._num_steps, self._has_met = 0, False  # all ranks count from 0
                return self._point.all_of(num_rounds)
            self._check_end(present)
            if present.who(Doing.REDUCES):
                num_rounds += 1
                self._meeting = lambda present=present: present
                self._send_rest(is_empty=True)
                self._finish(spreads=False)

    # Tracking of gradients.

    def remove(self) -> None:
        """Stop tracking gradients."""
        for handle in self._handles:
            handle.remove()

    def _watch(self) -> list[Any]:
        return [
            one.parameter.register_post_accumulate_grad_hook(self._counting(bucket))
            for bucket in self._buckets
            for one in bucket.members
        ]

    def _counting(self, bucket: Bucket) -> Callable[[torch.Tensor], None]:
        def count(parameter: torch.Tensor) -> None:
            key = id(parameter)
            self._seen[key] = seen = self._seen.get(key, 0) + 1
            if bucket.index < len(self._sent):
                self._late.add(bucket.index)
            elif seen == self._expected.get(key):
                self._num_open[bucket.index] -= 1
                if self._may_send:
                    self._send_ready()

        return count

    def _send_ready(self) -> None:
        while len(self._sent) < len(self._buckets) and self._num_open[len(self._sent)] == 0:
            self._send(self._buckets[len(self._sent)], is_empty=False)

    # Sending of buckets.

    def _send_rest(self, *, is_empty: bool) -> None:
        if self._failure is not None:
            raise ParallelError(self._failure)
        for bucket in self._buckets[len(self._sent) :]:
            self._send(bucket, is_empty=is_empty)

    def _send(self, bucket: Bucket, *, is_empty: bool) -> None:
        if self._meeting is None:
            assert self._point is not None
            self._meeting = self._point.begin(Doing.REDUCES, self._num_steps)
        self._sent.append(self._started(bucket, is_empty=is_empty))

    def _started(self, bucket: Bucket, *, is_empty: bool) -> _Sent:
        if self._hook is not None and bucket.num_ranks == self._hooked_ranks:
            flat = bucket.flatten(is_empty=is_empty, divides=False)[: bucket.numel]
            hooked = [one.index for one in self._buckets if one.num_ranks == self._hooked_ranks]
            wait = self._hook.start(bucket, flat, index=hooked.index(bucket.index), num_buckets=len(hooked))
            return lambda: (wait(), None)
        flat = bucket.flatten(is_empty=is_empty)
        work = dist.all_reduce(flat, group=bucket.group, async_op=True)

        def finish() -> tuple[torch.Tensor, list[float]]:
            work.wait()
            return flat[: bucket.numel], flat[bucket.numel :].tolist()

        return finish

    def _finish(self, *, spreads: bool) -> None:
        """Wait for all buckets; resend buckets that got gradients after they were sent."""
        assert self._meeting is not None
        sent, self._sent, late, self._late = self._sent, [], self._late, set()
        meeting, self._meeting = self._meeting, None
        closing = self._close(late, is_empty=not spreads)
        present = meeting()
        self._has_met = True
        self._check_end(present)
        if absent := present.who(Doing.STEPS):
            _LOG.warning("ranks %s had no backward pass in a step that others had one in: it counts as zero", absent)
        again, counts = closing()
        for index in again:
            sent[index]()  # wait for the early send too, since its buffer is in use
            sent[index] = self._started(self._buckets[index], is_empty=not spreads)
        num_active = len(present.doing) - len(present.who(Doing.HAS_ENDED))
        for bucket, wait in zip(self._buckets, sent, strict=True):
            means, found = wait()
            if spreads:
                if self._divides_by_active and num_active < bucket.num_ranks:
                    means = means * (bucket.num_ranks / num_active)
                bucket.spread(means, counts[bucket.index] if found is None else found)
        self._num_reductions += 1
        for key, seen in self._seen.items():
            self._expected[key] = max(seen, self._expected.get(key, 0))
        self._restart_counts()

    def _close(self, late: set[int], *, is_empty: bool) -> Callable[[], tuple[list[int], list[list[float]]]]:
        """Send flags of late buckets and of present gradients; return a function that waits for all ranks' flags.

        Returns: the function; it returns the buckets that any rank must send again and, with a hook, the number of
            ranks with a gradient of each parameter.
        """
        if self._hook is None and not (self._overlaps and self._num_reductions):
            return lambda: ([], [])
        assert self._point is not None
        own = [float(bucket.index in late) for bucket in self._buckets]
        if self._hook is not None:
            members = [one for bucket in self._buckets for one in bucket.members]
            own += [float(one.parameter.grad is not None and not is_empty) for one in members]
        wait = self._point.begin_sum(own)

        def heard() -> tuple[list[int], list[list[float]]]:
            sums = wait()
            again = [bucket.index for bucket in self._buckets if sums[bucket.index]]
            present, begin = [], len(self._buckets)
            for bucket in self._buckets:
                present.append(sums[begin : begin + len(bucket.members)])
                begin += len(bucket.members)
            return again, present

        return heard

    def _check_end(self, present: Present) -> None:
        if self._throws and (ended := present.who(Doing.HAS_ENDED)):
            raise RuntimeError(
                f"join: ranks {ended} have no more batches, but ranks {present.who(Doing.REDUCES)} still have "
                "some; with throw_on_early_termination all ranks end now"
            )

    def _restart_counts(self) -> None:
        self._seen.clear()
        self._num_open = [
            sum(self._expected.get(id(one.parameter), 0) > 0 for one in bucket.members) for bucket in self._buckets
        ]
