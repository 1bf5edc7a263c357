"""Drives one job through its events, for tests of the state machine."""

from datetime import UTC, datetime, timedelta

from clary.contract.agent_protocol import HostFacts, HostPhase, ProcessExit, Report
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.jobs import events, transitions
from clary.control.jobs.training_job import StatusTransition, TrainingJob

START = datetime(2026, 1, 1, tzinfo=UTC)
MODEL_URI = "s3://bucket/job/output/model.tar.gz"
PLAN = {"output": {"model_uri": MODEL_URI}, "agent_token": "t"}


def at(seconds):
    return START + timedelta(seconds=seconds)


def new_job(**changes):
    return TrainingJob(
        name="job",
        arn="arn",
        request={},
        status=TrainingJobStatus.IN_PROGRESS,
        secondary_status=SecondaryStatus.STARTING,
        transitions=(StatusTransition(status=SecondaryStatus.STARTING, started_at=START, message="m"),),
        created_at=START,
        modified_at=START,
        **changes,
    )


def exit_of(code, *, seconds=50, signal=None, killed=False, rank=0):
    return ProcessExit(
        rank=rank, local_rank=0, pid=1, exit_code=code, signal=signal, ended_at=at(seconds), is_consequence=killed
    )


class Script:
    """Drives one job; each call advances its clock by one second."""

    def __init__(self, hosts=("algo-1", "algo-2"), **changes):
        self.job = new_job(**changes)
        self.hosts = hosts
        self.seconds = 0
        self.numbers = dict.fromkeys(hosts, 0)

    def send(self, event):
        self.seconds += 1
        self.job = transitions.apply(self.job, event, now=at(self.seconds))
        return self

    def ask(self):
        streams = tuple(f"job/{host}-1" for host in self.hosts)
        return self.send(events.HostsAsked(plan=PLAN, host_names=tuple(self.hosts), log_streams=streams))

    def report(self, host, phase, *, notice_age_s=0.0, **facts):
        self.numbers[host] += 1
        told = HostFacts(phase=phase, phase_started_at=at(self.seconds), **facts)
        report = Report(number=self.numbers[host], facts=told, notice_age_s=notice_age_s)
        return self.send(events.HostReported(host=host, report=report))

    def all(self, phase, **facts):
        for host in self.hosts:
            self.report(host, phase, **facts)
        return self

    def order(self, host):
        return self.job.hosts[host].order.kind

    def run(self):
        return self.ask().all(HostPhase.PREPARING).all(HostPhase.PREPARED).all(HostPhase.RUNNING)

    def secondaries(self):
        return [row.status.value for row in self.job.transitions]
