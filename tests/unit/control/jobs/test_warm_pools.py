"""The life of a job's warm pool, event by event, and the jobs that may take the pool."""

from dataclasses import replace

import pytest
from job_script import MODEL_URI, PLAN, Script, at, exit_of

from clary.contract.agent_protocol import HostPhase
from clary.contract.rehearsals import REHEARSAL_VARIABLE
from clary.contract.statuses import TrainingJobStatus, WarmPoolStatus
from clary.control.jobs import events, warm_pools
from clary.control.jobs.training_job import EndCause, RestartRule

POOL = "pool_0123456789ab"


def request_of(*, role="r", keep_alive_s=60, count=2, **members):
    resources = {"InstanceType": "ml.m5.large", "InstanceCount": count, "VolumeSizeInGB": 1}
    return {
        "RoleArn": role,
        "ResourceConfig": {**resources, "KeepAlivePeriodInSeconds": keep_alive_s},
        **members,
    }


def running(**changes):
    script = Script()
    script.job = replace(script.job, request=request_of(), **changes)
    streams = tuple(f"job/{host}-1" for host in script.hosts)
    script.send(events.HostsAsked(plan=PLAN, host_names=script.hosts, log_streams=streams, pool=POOL))
    return script.all(HostPhase.PREPARING).all(HostPhase.PREPARED).all(HostPhase.RUNNING)


def ended(code=0, **changes):
    script = running(**changes)
    script.all(HostPhase.EXITED, exits=(exit_of(code),))
    script.report("algo-2", HostPhase.DONE, exits=(exit_of(code),))
    return script.report("algo-1", HostPhase.DONE, exits=(exit_of(code),), uploaded=(MODEL_URI,))


def test_hosts_stay_after_success_and_can_be_taken_once_they_are_cleaned_up():
    script = running()
    assert script.job.warm_pool.status is WarmPoolStatus.IN_USE
    script = ended()
    job = script.job
    assert (job.status, job.warm_pool.status) == (TrainingJobStatus.COMPLETED, WarmPoolStatus.AVAILABLE)
    assert (job.is_released, job.pool, warm_pools.is_parked(job)) == (False, POOL, False)
    assert not any(record.order.arguments["is_last"] for record in job.hosts.values())
    assert warm_pools.is_becoming_available(job, now=at(script.seconds))
    assert not warm_pools.is_becoming_available(job, now=at(script.seconds + 60)), (
        "nobody waits for a release that fails"
    )
    script.send(events.Released(keeps_pool=True))
    assert warm_pools.is_parked(script.job)
    assert not warm_pools.is_becoming_available(script.job, now=at(script.seconds))
    assert not script.job.is_released


def test_a_taken_pool_names_the_job_that_took_it_and_is_no_longer_held():
    script = ended().send(events.Released(keeps_pool=True)).send(events.PoolReused(by="next"))
    pool = script.job.warm_pool
    assert (pool.status, pool.reused_by, pool.is_parked) == (WarmPoolStatus.REUSED, "next", False)
    assert (script.job.pool, script.job.is_released) == ("", True)
    assert pool.retained_s(at(1000)) == pool.retained_s(at(2000)) == 2, "it counts while hosts wait and no longer"
    assert script.send(events.PoolEnded(reason="late")).job.warm_pool.status is WarmPoolStatus.REUSED


def test_a_pool_that_ends_is_terminated_with_the_reason():
    script = ended().send(events.Released(keeps_pool=True)).send(events.PoolEnded(reason="its time is over"))
    pool = script.job.warm_pool
    assert (pool.status, pool.reason) == (WarmPoolStatus.TERMINATED, "its time is over")
    assert not warm_pools.is_parked(script.job), "nobody can take it while it is being taken back"
    assert (script.job.pool, script.job.is_released) == (POOL, False)
    script.send(events.Released())
    assert (script.job.pool, script.job.is_released, script.job.warm_pool) == ("", True, pool)


def test_a_pool_whose_hosts_cannot_be_kept_is_terminated():
    script = ended().send(events.Released(keeps_pool=False))
    assert script.job.warm_pool.status is WarmPoolStatus.TERMINATED
    assert script.job.is_released


def test_a_failed_program_leaves_a_pool_and_a_lost_host_leaves_none():
    failed = ended(3)
    assert (failed.job.status, failed.job.warm_pool.status) == (TrainingJobStatus.FAILED, WarmPoolStatus.AVAILABLE)
    lost = running().send(events.HostLost(host="algo-2", why="algo-2 was lost: test"))
    lost.report("algo-1", HostPhase.EXITED, exits=(exit_of(None, signal=9, killed=True),))
    lost.report("algo-1", HostPhase.DONE, exits=(exit_of(None, signal=9, killed=True),))
    assert (lost.job.status, lost.job.warm_pool.status) == (TrainingJobStatus.FAILED, WarmPoolStatus.TERMINATED)
    assert not lost.job.is_released, "the hosts that live are still to be taken back"


def test_a_job_without_a_keep_alive_period_terminates_the_pool_that_it_took():
    script = running()
    script.job = replace(script.job, request=request_of(keep_alive_s=0))
    script.all(HostPhase.EXITED, exits=(exit_of(0),)).report("algo-2", HostPhase.DONE, exits=(exit_of(0),))
    script.report("algo-1", HostPhase.DONE, exits=(exit_of(0),), uploaded=(MODEL_URI,))
    assert script.job.warm_pool.status is WarmPoolStatus.TERMINATED


@pytest.mark.parametrize("keeps_pool", [True, False])
def test_a_job_that_is_restarted_waits_with_its_hosts_if_they_are_kept(keeps_pool):
    script = running(restart_rule=RestartRule(max_restarts=1))
    script.send(events.HostLost(host="algo-2", why="algo-2 was lost: test"))
    script.report("algo-1", HostPhase.EXITED, exits=(exit_of(None, signal=9, killed=True),))
    assert script.job.is_leaving
    script.send(events.Released(keeps_pool=keeps_pool))
    assert script.job.status is TrainingJobStatus.IN_PROGRESS
    assert script.job.pool == (POOL if keeps_pool else "")
    script.send(events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=1))
    assert script.job.is_terminal
    assert script.job.is_released is not keeps_pool, "hosts that stayed are still to be taken back"
    if keeps_pool:
        assert script.send(events.Released()).job.is_released


def test_a_job_that_released_its_hosts_and_ends_while_it_waits_has_no_pool_in_use():
    script = running(restart_rule=RestartRule(max_restarts=1))
    script.send(events.HostLost(host="algo-2", why="algo-2 was lost: test"))
    script.report("algo-1", HostPhase.EXITED, exits=(exit_of(None, signal=9, killed=True),))
    script.send(events.Released()).send(events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=1))
    assert script.job.warm_pool.status is WarmPoolStatus.TERMINATED
    assert script.job.is_released


def test_only_an_existing_pool_of_the_api_can_be_updated():
    assert warm_pools.can_be_updated(running().job)
    script = ended().send(events.Released(keeps_pool=True))
    assert warm_pools.can_be_updated(script.job)
    assert not warm_pools.can_be_updated(script.send(events.PoolEnded(reason="over")).job)
    restartable = running(restart_rule=RestartRule(max_restarts=1))
    assert not warm_pools.can_be_updated(replace(restartable.job, warm_pool=None)), "hosts that only outlive attempts"


@pytest.mark.parametrize(
    "changes",
    [
        {"role": "other"},
        {"count": 1},
        {"VpcConfig": {"Subnets": ["s"]}},
        {"EnableNetworkIsolation": True},
        {"EnableInterContainerTrafficEncryption": True},
        {"EnableManagedSpotTraining": True},
        {"HyperParameters": {"sagemaker_clary_host_share": "0.5"}},
    ],
    ids=str,
)
def test_only_a_job_that_asks_for_the_same_hosts_matches(changes):
    holder = replace(Script().job, request=request_of())
    assert warm_pools.matches(replace(holder, request=request_of(keep_alive_s=5, HyperParameters={"a": "b"})), holder)
    assert warm_pools.matches(replace(holder, request=request_of(EnableNetworkIsolation=False)), holder)
    assert not warm_pools.matches(replace(holder, request=request_of(**changes)), holder)


def test_rehearsals_take_no_pool_and_leave_none():
    holder = replace(Script().job, request=request_of())
    rehearsal = replace(holder, request=request_of(Environment={REHEARSAL_VARIABLE: "1"}))
    assert warm_pools.matches(holder, holder)
    assert not warm_pools.matches(rehearsal, holder)
    assert not warm_pools.matches(holder, rehearsal)
    assert not warm_pools.matches(rehearsal, rehearsal)


def test_a_pool_ends_after_its_period_and_at_once_when_the_period_is_set_to_zero():
    script = ended().send(events.Released(keeps_pool=True))
    began_at = script.job.warm_pool.available_at
    assert warm_pools.why_over(script.job, now=began_at) == ""
    late = warm_pools.why_over(script.job, now=at(script.seconds + 60))
    assert late == "no matching job came within the keep-alive period of 60 s"
    cleared = replace(script.job, request=request_of(keep_alive_s=0))
    assert warm_pools.why_over(cleared, now=began_at) == "the keep-alive period was set to 0"
