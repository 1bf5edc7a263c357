"""The next order of each host of a job. Pure.

Where: `transitions` calls `next_orders` after an event, unless the attempt ends for a retry or waits for evidence of
its first cause; agents fetch the orders through the gateway. Each new order of a host increases the order's number by
one, so that an agent which polls again does not execute an order twice.

Results are written in two steps, because hosts share no file system: every host but the leader stages its tree in the
object store, then the leader merges all trees into the final objects. The leader is the host with the lowest index that
is not lost when the leader is chosen. If it is lost before it is ordered to merge, the next leader may have staged its
tree already: it writes results a second time, as leader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from clary.base.plain import to_plain
from clary.contract.agent_protocol import (
    FAILURE_GRACE_S,
    FAILURE_REASON,
    IS_LAST,
    OMITS_EMPTY_MODEL,
    HostPhase,
    Order,
    OrderKind,
    UploadRole,
)
from clary.control.jobs.training_job import EndCause, HostRecord, TrainingJob

# Argument of the order to lead: when the leader's earlier order, to stage, was done; absent if it had no such order.
_STAGED_AT = "staged_at"


def next_orders(job: TrainingJob) -> Mapping[str, HostRecord]:
    """Return the hosts with the orders that follow from their facts."""
    if job.end_cause is None:
        return _run_when_all_are_prepared(job)
    if any(record.facts.phase.may_run for record in job.hosts.values()):
        has_failed = job.end_cause is EndCause.FAILURE
        return stop(job, reason=FAILURE_REASON, grace_s=FAILURE_GRACE_S) if has_failed else job.hosts
    if not _has_results(job):
        return job.hosts
    return _upload(job)


def stop(job: TrainingJob, *, reason: str, grace_s: float) -> Mapping[str, HostRecord]:
    """Return the hosts, with the order to stop for each host that may still run processes and has no such order.

    Args:
        job: job whose hosts are to stop.
        reason: text that agents write into their logs.
        grace_s: seconds that programs get between SIGTERM and SIGKILL.
    """
    return {
        name: _with_order(record, OrderKind.STOP, reason=reason, grace_s=grace_s)
        if record.facts.phase.may_run
        else record
        for name, record in job.hosts.items()
    }


def release(job: TrainingJob, *, is_last: bool) -> Mapping[str, HostRecord]:
    """Return the hosts with the order to leave the attempt; with `is_last` also their pool, which then ends."""
    arguments = {IS_LAST: is_last}
    return {name: _with_order(record, OrderKind.RELEASE, arguments=arguments) for name, record in job.hosts.items()}


def is_uploading(job: TrainingJob) -> bool:
    """Whether the order to write results is the latest order of any host."""
    return any(record.order is not None and record.order.kind is OrderKind.UPLOAD for record in job.hosts.values())


def has_delivered(record: HostRecord) -> bool:
    """Whether a host that is still UPLOADING has reported the results that its order wants from it."""
    order, facts = record.order, record.facts
    if facts.phase is not HostPhase.UPLOADING or order is None or order.kind is not OrderKind.UPLOAD:
        return False
    return bool(facts.uploaded if _leads(order) else facts.staged)


def has_led(job: TrainingJob) -> bool:
    """Whether the leader has reported the final objects, and still sends its last log lines."""
    leader = job.hosts[_leader(job)]
    return leader.order is not None and _leads(leader.order) and has_delivered(leader)


def is_releasing(job: TrainingJob) -> bool:
    """Whether the order to leave is the latest order of any host."""
    return any(record.order is not None and record.order.kind is OrderKind.RELEASE for record in job.hosts.values())


def is_stopping(job: TrainingJob) -> bool:
    """Whether the order to stop is the latest order of any host."""
    return any(record.order is not None and record.order.kind is OrderKind.STOP for record in job.hosts.values())


def has_nothing_owed(job: TrainingJob) -> bool:
    """Whether the cause of the job's end is known, and each of its results is written or known to be lost."""
    if job.end_cause is None or any(record.facts.phase.may_run for record in job.hosts.values()):
        return False
    if not _has_results(job):
        return True
    leader = job.hosts[_leader(job)]
    if leader.facts.phase is HostPhase.LOST:
        return True
    if leader.order is None or not _leads(leader.order):
        return False
    is_still_staged = to_plain(leader.facts.phase_started_at) == leader.order.arguments.get(_STAGED_AT)
    return leader.facts.phase in (HostPhase.DONE, HostPhase.RELEASED) and not is_still_staged


def model_uri(job: TrainingJob, uploaded: Sequence[str]) -> str | None:
    """Return the URI of the model, if it was written."""
    if job.plan is None:
        return None
    uri: str = job.plan["output"]["model_uri"]
    return uri if any(item.startswith(uri) for item in uploaded) else None


def _run_when_all_are_prepared(job: TrainingJob) -> Mapping[str, HostRecord]:
    if not all(record.facts.phase is HostPhase.PREPARED for record in job.hosts.values()):
        return job.hosts
    return {name: _with_order(record, OrderKind.RUN) for name, record in job.hosts.items()}


def _has_results(job: TrainingJob) -> bool:
    """Whether a program ran at all; a program that never ran left no results."""
    return any(record.facts.exits for record in job.hosts.values())


def _leader(job: TrainingJob) -> str:
    """Return the chosen leader; else the host with the lowest index that is not lost; the first if all are lost."""
    names = sorted(job.hosts, key=lambda name: int(name.rpartition("-")[2]))
    alive = [name for name in names if job.hosts[name].facts.phase is not HostPhase.LOST]
    led = [name for name in names if (order := job.hosts[name].order) is not None and _leads(order)]
    return (led or alive or names)[0]


def _leads(order: Order) -> bool:
    return order.arguments.get("role") == UploadRole.LEAD.value


def _upload(job: TrainingJob) -> Mapping[str, HostRecord]:
    leader = _leader(job)
    hosts = {
        name: _with_order(record, OrderKind.UPLOAD, arguments={"role": UploadRole.STAGE.value})
        if name != leader and record.facts.phase is HostPhase.EXITED
        else record
        for name, record in job.hosts.items()
    }
    followers = [record.facts for name, record in hosts.items() if name != leader]
    given = hosts[leader].order
    stages = given is not None and given.arguments.get("role") == UploadRole.STAGE.value
    has_staged = stages and hosts[leader].facts.phase is HostPhase.DONE
    if stages and not has_staged:
        return hosts  # the order to lead would not be obeyed meanwhile
    if all(facts.phase in (HostPhase.DONE, HostPhase.RELEASED, HostPhase.LOST) for facts in followers):
        staged = [to_plain(part) for facts in followers for part in facts.staged]
        arguments: dict[str, Any] = {"role": UploadRole.LEAD.value, "staged": staged}
        if job.end_cause is not EndCause.SUCCESS:
            arguments[OMITS_EMPTY_MODEL] = True  # a job that did not succeed must not show an empty model
        if has_staged:
            arguments[_STAGED_AT] = to_plain(hosts[leader].facts.phase_started_at)
        hosts[leader] = _with_order(hosts[leader], OrderKind.UPLOAD, arguments=arguments, is_new=has_staged)
    return hosts


def _with_order(
    record: HostRecord,
    kind: OrderKind,
    *,
    reason: str = "",
    grace_s: float = 0.0,
    arguments: Mapping[str, Any] | None = None,
    is_new: bool = False,
) -> HostRecord:
    """Return the host with a new order, unless it cannot receive orders or, without `is_new`, has one of this kind."""
    if record.facts.phase in (HostPhase.LOST, HostPhase.RELEASED):
        return record
    if record.order is not None and record.order.kind is kind and not is_new:
        return record
    number = record.order.number + 1 if record.order is not None else 1
    order = Order(number=number, kind=kind, reason=reason, grace_s=grace_s, arguments=arguments or {})
    return replace(record, order=order)
