"""State machine of a job: an event goes in, the next record and the next orders come out. Pure.

Where: the reconciler, the agent gateway and requests such as StopTrainingJob apply events through the store, each in
one transaction.
A job goes Starting -> [Pending -> Starting ->] Downloading -> Training -> [Stopping ->] Uploading -> Completed | Failed
| Stopped. Before its end it can return through Interrupted or Restarting to Starting, with the hosts of another attempt
(`attempts`).
Four rules hold for any order of events and facts. A terminal status absorbs every later event. A host's phase never
goes back. The first cause of an end stays the cause unless the job is retried. A job is Completed only when its results
are in the object store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from clary.base.errors import Fault
from clary.contract.agent_protocol import PREPARE_NUMBER, HostFacts, HostPhase, Order, OrderKind
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs import attempts, events, health, host_orders, notices, warm_pools
from clary.control.jobs.first_cause import find_first_cause
from clary.control.jobs.rules.rule_actions import reason_to_stop
from clary.control.jobs.rules.rule_evaluations import with_evaluation, with_facts
from clary.control.jobs.status_rows import MESSAGES, PREPARING_HOSTS_MESSAGE, enter, since
from clary.control.jobs.training_job import EndCause, HostRecord, JobFailure, TrainingJob
from clary.control.jobs.verdicts import judge

CLOCK_SLACK_S = 60.0  # seconds by which a host's clock may be behind
MAX_REASON_CHARACTERS = 800  # of a rule's finding that appear in a status message

_PHASE_ORDER = {phase: index for index, phase in enumerate(HostPhase)}
_STOP_CAUSES = {
    EndCause.STOP_REQUESTED: SecondaryStatus.STOPPED,
    EndCause.MAX_RUNTIME: SecondaryStatus.MAX_RUNTIME_EXCEEDED,
    EndCause.MAX_WAIT: SecondaryStatus.MAX_WAIT_TIME_EXCEEDED,
    EndCause.MAX_PENDING: SecondaryStatus.STOPPED,
    EndCause.RULE: SecondaryStatus.STOPPED,
}


def apply(job: TrainingJob, event: events.Event, *, now: datetime) -> TrainingJob:
    """Return the job after `event`; the same object if the event changes nothing.

    Args:
        job: present record of the job.
        event: event to apply.
        now: time of the event, aware, in UTC. If it is earlier than the last transition, the time of that transition is
            used.
    """
    if job.transitions:
        now = max(now, job.transitions[-1].started_at)
    changed = _HANDLERS[type(event)](job, event, now)
    if changed is job:
        return job
    return _advance(changed, now)


def _must_wait(job: TrainingJob, event: events.MustWait, now: datetime) -> TrainingJob:
    if job.is_terminal or job.hosts or job.pending_reason == event.reason:
        return job
    if job.past_attempts:
        return attempts.wait(job, event.reason, now)
    job = replace(job, pending_reason=event.reason)
    return enter(job, SecondaryStatus.PENDING, event.reason, now=now)


def _hosts_asked(job: TrainingJob, event: events.HostsAsked, now: datetime) -> TrainingJob:
    if job.status is not TrainingJobStatus.IN_PROGRESS or job.hosts:
        return job
    facts = HostFacts(phase=HostPhase.LAUNCHING, phase_started_at=now)
    prepare = Order(number=PREPARE_NUMBER, kind=OrderKind.PREPARE)
    job = replace(
        job,
        attempt=job.attempt + 1,
        plan=event.plan,
        log_streams=event.log_streams,
        log_bases=event.log_bases,
        not_before=None,
        hosts={name: HostRecord(facts=facts, order=prepare) for name in event.host_names},
        pending_reason="",
        is_released=False,
        pool=event.pool,
        pool_gpus=(),
        warm_pool=warm_pools.on_start(job, left_by=event.left_by),
    )
    left_by = f" (the warm pool that {event.left_by} left)" if event.left_by else ""
    message = event.granted or f"{PREPARING_HOSTS_MESSAGE}{left_by}"
    return enter(job, SecondaryStatus.STARTING, message, now=now)


def _allocation_asked(job: TrainingJob, event: events.AllocationAsked, now: datetime) -> TrainingJob:
    del now
    if job.status is not TrainingJobStatus.IN_PROGRESS or job.hosts or job.pool:
        return job
    return replace(job, pool=event.pool)


def _network_ready(job: TrainingJob, event: events.NetworkReady, now: datetime) -> TrainingJob:
    del now
    return job if job.is_terminal or job.plan == event.plan else replace(job, plan=event.plan)


def _launch_failed(job: TrainingJob, event: events.LaunchFailed, now: datetime) -> TrainingJob:
    if job.is_terminal:
        return job
    hosts = {name: _with_phase(record, HostPhase.LOST, now) for name, record in job.hosts.items()}
    if job.ending is not None:
        return replace(job, hosts=hosts)
    judgement = judge(event.fault, event.message)
    failure = JobFailure(
        fault=event.fault.value,
        message=event.message,
        verdict=judgement.verdict.value,
        is_retryable=judgement.is_retryable,
        is_of_launch=True,
    )
    if job.end_cause is None:
        job = replace(job, end_cause=EndCause.FAILURE, failure=failure)
    job = replace(job, hosts=hosts)
    return job if hosts else _finish(job, now)


def _host_reported(job: TrainingJob, event: events.HostReported, now: datetime) -> TrainingJob:
    record = job.hosts.get(event.host)
    if record is None or event.report.number <= record.report_number:
        return job
    facts = _bounded(event.report.facts, since(job.transitions, SecondaryStatus.STARTING) or now)
    if record.facts.phase is HostPhase.LOST or _PHASE_ORDER[facts.phase] < _PHASE_ORDER[record.facts.phase]:
        return job
    updated = replace(record, facts=facts, report_number=event.report.number)
    if facts == record.facts:
        return job
    job = replace(job, hosts={**job.hosts, event.host: updated})
    if facts.notice is not None:
        stop_grace_s = float((job.plan or {}).get("stop_grace_s", 0.0))
        age_s = event.report.notice_age_s
        reclaimed = notices.of_report(event.host, facts.notice, age_s=age_s, stop_grace_s=stop_grace_s, now=now)
        job = attempts.reclaim(job, reclaimed, now)
    return job if facts.rules == record.facts.rules else replace(job, rule_evaluations=with_facts(job, facts, now))


def _bounded(facts: HostFacts, begin: datetime) -> HostFacts:
    """Return facts with no clue dated before the attempt less CLOCK_SLACK_S: a program can write any time into one."""
    earliest = begin - timedelta(seconds=CLOCK_SLACK_S)
    return replace(facts, clues=tuple(replace(clue, at=max(clue.at, earliest)) for clue in facts.clues))


def _host_lost(job: TrainingJob, event: events.HostLost, now: datetime) -> TrainingJob:
    record = job.hosts.get(event.host)
    if record is None or record.facts.phase in (HostPhase.LOST, HostPhase.RELEASED):
        return job
    # The loss of a host that is DONE or has delivered, or whose job has ended, is no cause of a failure.
    is_cause = not (job.is_terminal or record.facts.phase is HostPhase.DONE or host_orders.has_delivered(record))
    lost = replace(
        _with_phase(record, HostPhase.LOST, now),
        lost_why=event.why if is_cause else "",
        last_sign_at=event.last_sign_at if is_cause else None,
        is_cut_off=event.is_cut_off,
    )
    return replace(job, hosts={**job.hosts, event.host: lost})


def _host_cut_off(job: TrainingJob, event: events.HostCutOff, now: datetime) -> TrainingJob:
    del now
    record = job.hosts.get(event.host)
    if record is None or record.lost_why or not attempts.awaits_evidence(job):
        return job
    blamed = replace(record, lost_why=event.why, last_sign_at=event.last_sign_at, is_cut_off=True)
    return replace(job, hosts={**job.hosts, event.host: blamed})


def _no_more_evidence(job: TrainingJob, event: events.NoMoreEvidence, now: datetime) -> TrainingJob:
    del event, now
    return replace(job, has_all_evidence=True) if attempts.awaits_evidence(job) else job


def _stop_wanted(job: TrainingJob, event: events.StopWanted, now: datetime) -> TrainingJob:
    if not job.is_terminal and attempts.will_be_retried(job):
        # The hosts are still stopping after a failure; without this the job would be retried despite the stop.
        job = replace(job, end_cause=None, failure=None, failed_at=None, has_all_evidence=False)
    if job.is_terminal or job.end_cause is not None:
        return job
    return _stop(job, event.cause, event.grace_s, MESSAGES[SecondaryStatus.STOPPING], now)


def _stop(job: TrainingJob, cause: EndCause, grace_s: float, message: str, now: datetime) -> TrainingJob:
    job = replace(job, end_cause=cause, stop_ordered_at=now)
    if not job.hosts:
        return _finish(job, now)
    if not job.is_leaving:  # a job whose attempt has ended gets its final status when the hosts are released
        job = replace(job, ending=None)
    job = replace(
        job,
        status=TrainingJobStatus.STOPPING,
        hosts=host_orders.stop(job, reason=cause.value, grace_s=grace_s),
    )
    return enter(job, SecondaryStatus.STOPPING, message, now=now)


def _upload_overdue(job: TrainingJob, event: events.UploadOverdue, now: datetime) -> TrainingJob:
    if job.is_terminal or job.ending is not None or not host_orders.is_uploading(job):
        return job  # a lost host keeps its order to upload while its attempt ends for a retry
    if job.end_cause is not None and host_orders.has_led(job):
        return _finish(job, now)  # only the leader's last log lines are missing
    message = (
        f"results did not reach the object store within {event.limit_s:.0f} s (setting upload_timeout_s); "
        "see the job's log for what the upload was waiting for"
    )
    judgement = judge(Fault.INFRASTRUCTURE, message)
    failure = JobFailure(
        fault=Fault.INFRASTRUCTURE.value,
        message=message,
        verdict=judgement.verdict.value,
        is_retryable=judgement.is_retryable,
    )
    # A stopped job stays Stopped, as after an upload that fails on its host; the reason is told with it.
    cause = EndCause.FAILURE if job.end_cause in (None, EndCause.SUCCESS) else job.end_cause
    return _finish(replace(job, end_cause=cause, failure=job.failure or failure), now)


def _released(job: TrainingJob, event: events.Released, now: datetime) -> TrainingJob:
    if job.is_released:
        return job
    if job.is_leaving and not job.is_terminal:
        job = replace(attempts.put_on_record(job, now, keeps_pool=event.keeps_pool), modified_at=now)
        return job if job.end_cause is None else _finish(job, now)
    if not job.is_terminal:
        return job
    return warm_pools.park(job) if event.keeps_pool else warm_pools.end(job, now=now)


def _pool_given(job: TrainingJob, event: events.PoolGiven, now: datetime) -> TrainingJob:
    del now
    return job if job.pool or job.is_released else replace(job, pool=event.pool, plan=event.plan)


def _pool_reused(job: TrainingJob, event: events.PoolReused, now: datetime) -> TrainingJob:
    return warm_pools.hand_over(job, by=event.by, now=now)


def _pool_ended(job: TrainingJob, event: events.PoolEnded, now: datetime) -> TrainingJob:
    return warm_pools.begin_to_end(job, reason=event.reason, now=now)


def _rule_evaluation_changed(job: TrainingJob, event: events.RuleEvaluationChanged, now: datetime) -> TrainingJob:
    del now
    evaluations = with_evaluation(job, event.evaluation)
    return job if evaluations is job.rule_evaluations else replace(job, rule_evaluations=evaluations)


_HANDLERS: dict[type, Callable[[TrainingJob, Any, datetime], TrainingJob]] = {
    events.MustWait: _must_wait,
    events.HostsAsked: _hosts_asked,
    events.AllocationAsked: _allocation_asked,
    events.NetworkReady: _network_ready,
    events.LaunchFailed: _launch_failed,
    events.HostReported: _host_reported,
    events.HostLost: _host_lost,
    events.HostCutOff: _host_cut_off,
    events.NoMoreEvidence: _no_more_evidence,
    events.StopWanted: _stop_wanted,
    events.Reclaimed: attempts.reclaim,
    events.ReclaimExplained: attempts.explain,
    events.UploadOverdue: _upload_overdue,
    events.Released: _released,
    events.PoolGiven: _pool_given,
    events.PoolReused: _pool_reused,
    events.PoolEnded: _pool_ended,
    events.RuleEvaluationChanged: _rule_evaluation_changed,
}


def _advance(job: TrainingJob, now: datetime) -> TrainingJob:
    """Update the job by its hosts' facts: causes, statuses, orders, the end."""
    if job.is_terminal or not job.hosts:
        return job
    if job.end_cause is None and _is_before_exit(job) and (reason := reason_to_stop(job)):
        return _advance(_stop_by_rule(job, reason, now), now)
    if job.ending is None:
        job = _find_failure(job, now)
        if attempts.awaits_evidence(job):
            return _follow_phases(job, now)
        job = attempts.retry(job, now)
    if job.ending is not None:
        job = attempts.follow(job)
        # A rule's finding while an attempt ends prevents the next attempt, which the rule would stop.
        if job.is_leaving and job.end_cause is None and (reason := reason_to_stop(job)):
            job = _stop_by_rule(job, reason, now)
        if job.ending is not None:
            return job
    if job.end_cause is None and all(_has_succeeded(record.facts) for record in job.hosts.values()):
        job = replace(job, end_cause=EndCause.SUCCESS)
    job = _follow_phases(job, now)
    job = replace(job, hosts=host_orders.next_orders(job))
    if job.stop_ordered_at is None and host_orders.is_stopping(job):
        job = replace(job, stop_ordered_at=now)
    if host_orders.is_uploading(job):
        job = enter(job, SecondaryStatus.UPLOADING, MESSAGES[SecondaryStatus.UPLOADING], now=now)
    if host_orders.has_nothing_owed(job):
        job = _finish(job, now)
    return job


def _stop_by_rule(job: TrainingJob, reason: str, now: datetime) -> TrainingJob:
    grace_s = float((job.plan or {}).get("stop_grace_s", 0.0))
    message = f"{MESSAGES[SecondaryStatus.STOPPING]}: {reason[:MAX_REASON_CHARACTERS]}"
    return _stop(job, EndCause.RULE, grace_s, message, now)


def _find_failure(job: TrainingJob, now: datetime) -> TrainingJob:
    """Update the first cause, because the host that failed first may report last."""
    if job.end_cause not in (None, EndCause.SUCCESS, EndCause.FAILURE):
        return job
    first = find_first_cause(job.hosts) or health.failure_of(job)
    if first is None or (job.failure is not None and job.failure.is_of_launch):
        return job
    return replace(job, end_cause=EndCause.FAILURE, failure=first, failed_at=job.failed_at or now)


def _is_before_exit(job: TrainingJob) -> bool:
    """Whether any host's program can still be stopped; a rule's finding does not change an ended training."""
    return any(_PHASE_ORDER[record.facts.phase] < _PHASE_ORDER[HostPhase.EXITED] for record in job.hosts.values())


def _has_succeeded(facts: HostFacts) -> bool:
    ended = _PHASE_ORDER[HostPhase.EXITED] <= _PHASE_ORDER[facts.phase] <= _PHASE_ORDER[HostPhase.DONE]
    return ended and bool(facts.exits) and all(item.exit_code == 0 for item in facts.exits)


def _follow_phases(job: TrainingJob, now: datetime) -> TrainingJob:
    """Enter Downloading and Training when the first host reaches them; a stopping job keeps its status."""
    if job.status is not TrainingJobStatus.IN_PROGRESS:
        return job
    phases = [record.facts.phase for record in job.hosts.values()]
    furthest = max(
        (_PHASE_ORDER[phase] for phase in phases if phase is not HostPhase.LOST), default=_PHASE_ORDER[HostPhase.LOST]
    )
    is_starting = job.secondary_status in (SecondaryStatus.STARTING, SecondaryStatus.PENDING)
    if is_starting and _PHASE_ORDER[HostPhase.PREPARING] <= furthest < _PHASE_ORDER[HostPhase.LOST]:
        job = replace(job, training_started_at=job.training_started_at or now)
        job = enter(job, SecondaryStatus.DOWNLOADING, MESSAGES[SecondaryStatus.DOWNLOADING], now=now)
    has_run = any(record.facts.phase is HostPhase.RUNNING or bool(record.facts.exits) for record in job.hosts.values())
    if job.secondary_status is SecondaryStatus.DOWNLOADING and has_run:
        job = enter(job, SecondaryStatus.TRAINING, MESSAGES[SecondaryStatus.TRAINING], now=now)
    return job


def _finish(job: TrainingJob, now: datetime) -> TrainingJob:
    """Enter the terminal status that follows from the cause, and release every host."""
    cause = job.end_cause
    if cause is EndCause.SUCCESS:
        status, secondary = TrainingJobStatus.COMPLETED, SecondaryStatus.COMPLETED
    elif cause in _STOP_CAUSES:
        status, secondary = TrainingJobStatus.STOPPED, _STOP_CAUSES[cause]
    else:
        status, secondary = TrainingJobStatus.FAILED, SecondaryStatus.FAILED
    uploaded = [uri for record in job.hosts.values() for uri in record.facts.uploaded]
    job = replace(
        job,
        status=status,
        training_ended_at=now if job.training_started_at is not None else None,
        model_artifacts_uri=host_orders.model_uri(job, uploaded),
    )
    message = MESSAGES[secondary]
    if cause is EndCause.RULE:
        message = f"{message}: {reason_to_stop(job)[:MAX_REASON_CHARACTERS]}"
    job = warm_pools.on_finish(enter(job, secondary, message, now=now), now)
    job = replace(job, hosts=host_orders.release(job, is_last=not warm_pools.is_available(job)))
    rows = (*job.transitions[:-1], replace(job.transitions[-1], ended_at=now))
    return replace(job, transitions=rows)


def _with_phase(record: HostRecord, phase: HostPhase, now: datetime) -> HostRecord:
    return replace(record, facts=replace(record.facts, phase=phase, phase_started_at=now))
