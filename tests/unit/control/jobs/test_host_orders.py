"""The choice of the host that leads the upload, and owed results, for every numbering and loss of hosts."""

from dataclasses import replace
from datetime import timedelta

from clary.contract.agent_protocol import HostFacts, HostPhase, OrderKind, ProcessExit
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs import host_orders
from clary.control.jobs.training_job import EndCause, HostRecord, TrainingJob
from clary.testing.fake_clock import START


def record(phase, *, has_run=True):
    exits = (ProcessExit(rank=0, local_rank=0, pid=1, exit_code=0, signal=None, ended_at=START),) if has_run else ()
    return HostRecord(facts=HostFacts(phase=phase, phase_started_at=START, exits=exits))


def ended_job(hosts):
    return TrainingJob(
        name="job",
        arn="arn",
        request={},
        status=TrainingJobStatus.IN_PROGRESS,
        secondary_status=SecondaryStatus.TRAINING,
        transitions=(),
        created_at=START,
        modified_at=START,
        hosts=hosts,
        end_cause=EndCause.SUCCESS,
    )


def roles(job):
    orders = {name: host.order for name, host in host_orders.next_orders(job).items()}
    return {name: order.arguments["role"] for name, order in orders.items() if order is not None}


def test_the_host_with_the_lowest_number_leads_not_the_first_in_the_alphabet():
    job = ended_job({f"algo-{number}": record(HostPhase.EXITED) for number in (10, 11, 2, 9)})
    assert roles(job) == {"algo-10": "stage", "algo-11": "stage", "algo-9": "stage"}
    done = {name: record(HostPhase.DONE) for name in ("algo-10", "algo-11", "algo-9")}
    assert roles(replace(job, hosts={**job.hosts, **done})) == {"algo-2": "lead"}


def test_the_leader_of_a_job_that_did_not_complete_writes_no_model_archive():
    def omits(cause):
        job = replace(ended_job({"algo-1": record(HostPhase.EXITED)}), end_cause=cause)
        return host_orders.next_orders(job)["algo-1"].order.arguments.get("omits_empty_model", False)

    assert [cause for cause in EndCause if not omits(cause)] == [EndCause.SUCCESS]


def test_when_the_first_host_is_lost_the_next_one_leads():
    job = ended_job({"algo-1": record(HostPhase.LOST), "algo-2": record(HostPhase.EXITED)})
    assert roles(job) == {"algo-2": "lead"}
    assert not host_orders.has_nothing_owed(job)


def test_a_host_that_has_staged_leads_if_the_leader_is_lost_meanwhile():
    job = ended_job({f"algo-{number}": record(HostPhase.EXITED) for number in (1, 2, 3)})
    job = replace(job, hosts=host_orders.next_orders(job))

    def moved(job, name, phase, seconds=0):
        facts = job.hosts[name].facts
        facts = replace(facts, phase=phase, phase_started_at=START + timedelta(seconds=seconds))
        job = replace(job, hosts={**job.hosts, name: replace(job.hosts[name], facts=facts)})
        return replace(job, hosts=host_orders.next_orders(job))

    job = moved(job, "algo-1", HostPhase.LOST)
    job = moved(job, "algo-2", HostPhase.UPLOADING)
    job = moved(job, "algo-3", HostPhase.DONE, seconds=1)
    assert roles(job) == {"algo-2": "stage", "algo-3": "stage"}, "algo-2 is still staging"
    job = moved(job, "algo-2", HostPhase.DONE, seconds=2)
    assert roles(job) == {"algo-2": "lead", "algo-3": "stage"}
    assert job.hosts["algo-2"].order.number == 2
    assert not host_orders.has_nothing_owed(job), "its DONE is that of staging"
    again = replace(job, hosts=host_orders.next_orders(job))
    assert again.hosts["algo-2"].order.number == 2
    job = moved(job, "algo-2", HostPhase.UPLOADING, seconds=3)
    assert not host_orders.has_nothing_owed(job)
    job = moved(job, "algo-2", HostPhase.DONE, seconds=4)
    assert host_orders.has_nothing_owed(job)
    assert job.hosts["algo-2"].order.number == 2


def test_a_job_whose_program_never_ran_owes_no_results():
    job = ended_job({"algo-1": record(HostPhase.EXITED, has_run=False)})
    assert host_orders.has_nothing_owed(job)
    assert roles(job) == {}


def test_a_stop_order_is_given_once_and_a_lost_host_gets_none():
    job = ended_job({"algo-1": record(HostPhase.RUNNING), "algo-2": record(HostPhase.LOST)})
    once = host_orders.stop(job, reason="", grace_s=3)
    twice = host_orders.stop(replace(job, hosts=once), reason="", grace_s=9)
    assert twice == once
    assert (once["algo-1"].order.kind, once["algo-1"].order.number, once["algo-1"].order.grace_s) == (
        OrderKind.STOP,
        1,
        3,
    )
    assert once["algo-2"].order is None


def test_the_model_uri_is_set_only_if_an_object_was_uploaded_below_it():
    job = replace(ended_job({}), plan={"output": {"model_uri": "s3://b/job/output/model/"}})
    assert host_orders.model_uri(job, ["s3://b/job/output/model/weights"]) == "s3://b/job/output/model/"
    assert host_orders.model_uri(job, ["s3://b/job/output/data/x"]) is None
