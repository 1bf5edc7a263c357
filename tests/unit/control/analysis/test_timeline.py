"""Events of a job in order: the cause is marked, the consequences are folded."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from clary.contract.agent_protocol import Clue, HostFacts, HostPhase, ProcessExit
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.analysis.timeline import CASCADE, CAUSE, FAILURE, STATUS, timeline
from clary.control.jobs.first_cause import find_first_cause
from clary.control.jobs.training_job import HostRecord, StatusTransition, TrainingJob

START = datetime(2026, 1, 1, tzinfo=UTC)
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"


def at(seconds):
    return START + timedelta(seconds=seconds)


def ended(rank, seconds, *, by_agent=False):
    return ProcessExit(
        rank=rank, local_rank=0, pid=1, exit_code=1, signal=None, ended_at=at(seconds), is_consequence=by_agent
    )


def host(*exits, clues=(), lost_why=""):
    phase = HostPhase.LOST if lost_why else HostPhase.EXITED
    facts = HostFacts(phase=phase, phase_started_at=at(20), exits=exits, clues=clues)
    return HostRecord(facts=facts, lost_why=lost_why)


def clue(rank, seconds, text):
    return Clue(rank=rank, at=at(seconds), text=text)


def job_of(**hosts):
    hosts = {name.replace("_", "-"): record for name, record in hosts.items()}
    starting = StatusTransition(status=SecondaryStatus.STARTING, started_at=START, ended_at=at(1), message="begins")
    training = StatusTransition(status=SecondaryStatus.TRAINING, started_at=at(1), message="runs")
    return TrainingJob(
        name="job",
        arn="arn",
        request={},
        status=TrainingJobStatus.IN_PROGRESS,
        secondary_status=SecondaryStatus.TRAINING,
        transitions=(starting, training),
        created_at=START,
        modified_at=START,
        hosts=hosts,
        failure=find_first_cause(hosts),
    )


def rows(job):
    return [((row.at - START).total_seconds(), row.kind, row.where, row.what, row.num_folded) for row in timeline(job)]


def test_a_job_without_failures_has_only_statuses():
    assert rows(job_of(algo_1=host())) == [
        (0, STATUS, "", "Starting: begins", 1),
        (1, STATUS, "", "Training: runs", 1),
    ]


def test_the_cause_is_among_statuses_and_consequences_are_folded_by_host():
    job = job_of(
        algo_1=host(ended(0, 5.1), ended(1, 5.2), clues=(clue(0, 5.1, RESET), clue(1, 5.2, RESET))),
        algo_2=host(
            ended(2, 5.0),
            ended(3, 9.0, by_agent=True),
            ended(4, 8.0, by_agent=True),
            clues=(clue(2, 4.9, "KeyError: 'label'"),),
        ),
    )
    assert rows(job)[2:] == [
        (4.9, CAUSE, "algo-2, rank 2", "rank 2: KeyError: 'label'", 1),
        (
            5.1,
            CASCADE,
            "algo-1",
            f"2 processes failed because of it, the first with: rank 0: {RESET}",
            2,
        ),
        (9.0, CASCADE, "algo-2", "2 of this host's processes were ended because of it", 2),
    ]


def test_the_cause_of_the_timeline_is_that_of_the_failure_reason_though_effects_came_first():
    job = job_of(
        algo_1=host(ended(0, 3.0), clues=(clue(0, 2.5, RESET),)),
        algo_2=host(lost_why="algo-2 was lost: its agent has been silent for 5.0 s"),
    )
    assert rows(job)[2:] == [
        (2.5, CASCADE, "algo-1, rank 0", f"rank 0: {RESET}", 1),
        (20, CAUSE, "algo-2", "algo-2 was lost: its agent has been silent for 5.0 s", 1),
    ]
    assert job.failure.host == "algo-2"


def test_an_exit_that_answered_to_a_lost_host_is_no_failure_of_its_own():
    gone = replace(host(lost_why="algo-2 was lost: its agent ended"), last_sign_at=at(2.0))
    job = job_of(algo_1=host(ended(0, 3.0)), algo_2=gone)
    assert rows(job)[2:] == [
        (3.0, CASCADE, "algo-1, rank 0", "rank 0 ended with exit code 1", 1),
        (20, CAUSE, "algo-2", "algo-2 was lost: its agent ended", 1),
    ]


def test_an_independent_failure_after_the_cause_is_listed_separately():
    job = job_of(algo_1=host(ended(0, 3.0), ended(1, 4.0), clues=(clue(0, 3, "KeyError: 1"), clue(1, 4, "OSError: 2"))))
    assert [row[1] for row in rows(job)[2:]] == [CAUSE, FAILURE]
