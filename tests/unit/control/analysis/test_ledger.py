"""The ledger of time: every second of every host is in exactly one part."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from job_script import PLAN, Script, at, exit_of

from clary.base.errors import Fault
from clary.base.plain import from_plain, to_plain
from clary.contract.agent_protocol import CheckpointFacts, HostFacts, HostPhase, Report
from clary.contract.statuses import SecondaryStatus, TrainingJobStatus
from clary.control.analysis.ledger import ledger
from clary.control.analysis.time_parts import TimePart, cut_time
from clary.control.jobs import events, transitions
from clary.control.jobs.training_job import EndCause, RestartRule

SPOT = {"EnableManagedSpotTraining": True}


class Story(Script):
    """A script in which time passes only in explicit steps."""

    def __init__(self, hosts=("algo-1",), **changes):
        super().__init__(hosts, **changes)
        self.job = replace(self.job, request=SPOT)

    def send(self, event):
        self.job = transitions.apply(self.job, event, now=at(self.seconds))
        return self

    def wait(self, seconds):
        self.seconds += seconds
        return self

    def run(self, *, after=0, timings=None):
        """Bring every host to RUNNING; the whole preparation takes `after` seconds."""
        self.ask().all(HostPhase.PREPARING).wait(after)
        of_host = timings or {}
        for host in self.hosts:
            self.report(host, HostPhase.PREPARED, timings_s=of_host.get(host, {}))
        for host in self.hosts:
            self.report(host, HostPhase.RUNNING, timings_s=of_host.get(host, {}))
        return self

    def exit(self, host="algo-1", code=0, *, killed=False, **facts):
        """Let a host's program end now."""
        exits = (exit_of(code, seconds=self.seconds, killed=killed),)
        return self.report(host, HostPhase.EXITED, exits=exits, **{**self.kept(host), **facts})

    def done(self, host="algo-1", **facts):
        """Let a host finish its upload now."""
        exits = self.job.hosts[host].facts.exits
        return self.report(host, HostPhase.DONE, exits=exits, **{**self.kept(host), **facts})

    def kept(self, host):
        """Return the facts that every report of a host repeats."""
        last = self.job.hosts[host].facts
        meeting = {"awaits_rendezvous": last.awaits_rendezvous, "rendezvous_at": last.rendezvous_at}
        return {"timings_s": dict(last.timings_s), **meeting}

    def look_for_each_other(self, *hosts):
        """Let the agents of running hosts report that they watch the connections of their programs."""
        for host in hosts or self.hosts:
            self.report(host, HostPhase.RUNNING, awaits_rendezvous=True)
        return self

    def come(self, host="algo-1"):
        """Let a host's program connect now."""
        return self.report(host, HostPhase.RUNNING, rendezvous_at=at(self.seconds))

    def end_early(self, *, stopping=0, committed=None):
        """Reclaim the capacity, let every program end after `stopping` seconds, and release the attempt."""
        self.send(events.Reclaimed(reason="gone", grace_s=120)).wait(stopping)
        for host in self.hosts:
            facts = None if committed is None else CheckpointFacts(set_number=1, committed_at=at(committed))
            self.exit(host, 143, killed=True, checkpoints=facts)
        return self.send(events.Released())

    def parts(self, host="algo-1"):
        """Return a host's entries as pairs of part and seconds."""
        now = at(self.seconds)
        return [(item.part.value, item.length.total_seconds()) for item in cut_time(self.job, now=now)[host]]

    def ledger(self):
        return ledger(self.job, now=at(self.seconds))


def test_a_job_that_goes_well_has_its_time_in_the_order_of_its_life():
    timings = {"algo-1": {"tree": 1.0, "code": 2.0, "environment": 6.0, "channel:train": 4.0, "checkpoints": 7.0}}
    story = Story().wait(3).send(events.MustWait(reason="full")).wait(10).ask().wait(2)
    story.all(HostPhase.PREPARING).wait(10)
    story.all(HostPhase.PREPARED, timings_s=timings["algo-1"]).all(HostPhase.RUNNING, timings_s=timings["algo-1"])
    story.wait(100).exit().wait(5).done()
    assert story.job.secondary_status is SecondaryStatus.COMPLETED
    assert story.parts() == [
        ("queued", 13),
        ("starting", 2),
        ("downloading", 5),  # tree, then the slower of code and channel
        ("restoring", 3),  # time of checkpoints beyond code and channel
        ("installing", 1),  # time of the environment beyond both
        ("starting", 1),  # the order to run, and the start of the program
        ("productive", 100),
        ("uploading", 5),
    ]
    book = story.ledger()
    assert book.wall_s == 130
    assert book.goodput == pytest.approx(100 / 130)
    assert list(book.seconds) == [part for part in TimePart if part in book.seconds], "in the order of the parts"
    assert (book.num_attempts, book.num_reclaimed, book.num_restarted) == (1, 0, 0)


def test_a_job_that_waits_is_queued_with_as_many_hosts_as_it_asks_for():
    story = Story().wait(8)
    story.job = replace(story.job, request={"ResourceConfig": {"InstanceType": "ml.c5.xlarge", "InstanceCount": 3}})
    book = story.ledger()
    assert [host.name for host in book.hosts] == ["algo-1", "algo-2", "algo-3"]
    assert book.seconds == {"queued": 24}
    assert book.goodput == 0


def test_a_job_of_zero_duration_has_no_goodput():
    book = Story().ledger()
    assert (book.wall_s, book.goodput, book.seconds) == (0, 0, {})


def test_the_faster_host_waits_for_the_slower_to_prepare_to_end_and_to_upload():
    timings = {"algo-1": {"code": 2.0}, "algo-2": {"code": 8.0}}
    story = Story(("algo-1", "algo-2")).run(after=9, timings=timings)
    story.wait(50).exit("algo-1").wait(4).exit("algo-2", timings_s={"code": 8.0, "upload": 3.0})
    story.wait(3).done("algo-2").wait(2)
    model = ("s3://bucket/job/output/model.tar.gz",)
    story.done("algo-1", timings_s={"code": 2.0, "upload": 1.5}, uploaded=model)
    assert story.job.secondary_status is SecondaryStatus.COMPLETED
    assert story.parts("algo-1") == [
        ("downloading", 2),
        ("idle_waiting", 6),
        ("starting", 1),
        ("productive", 50),
        ("idle_waiting", 4 + 3.5),
        ("uploading", 1.5),
    ]
    assert story.parts("algo-2") == [
        ("downloading", 8),
        ("starting", 1),
        ("productive", 54),
        ("uploading", 3),
        ("idle_waiting", 2),
    ]


def test_a_reclaimed_attempt_loses_the_time_after_its_last_checkpoint_set():
    story = Story().run(after=2).wait(30).end_early(stopping=4, committed=25)
    story.wait(60).run(after=1).wait(20).exit().done()
    assert story.parts() == [
        ("downloading", 2),
        ("productive", 23),
        ("lost_to_restart", 7),
        ("stopping", 4),
        ("queued", 60),
        ("downloading", 1),
        ("productive", 20),
    ]
    book = story.ledger()
    assert (book.num_attempts, book.num_reclaimed) == (2, 1)
    assert book.goodput == pytest.approx(43 / 117)


def test_an_attempt_that_stores_checkpoints_while_it_stops_loses_nothing():
    story = Story().run().wait(30).send(events.Reclaimed(reason="gone", grace_s=120)).wait(2)
    facts = CheckpointFacts(set_number=3, committed_at=at(35))
    story.exit(code=143, killed=True, checkpoints=facts).wait(5).send(events.Released())
    assert story.parts() == [("productive", 30), ("stopping", 2), ("checkpointing", 3), ("stopping", 2)]


def test_an_attempt_without_a_set_of_its_own_loses_everything():
    story = Story().run().wait(30).end_early().wait(1)
    assert story.parts() == [("lost_to_restart", 30), ("queued", 1)]
    assert story.ledger().goodput == 0


def test_of_several_hosts_the_set_that_was_stored_last_counts_for_all():
    story = Story(("algo-1", "algo-2")).run().wait(30).send(events.Reclaimed(reason="gone", grace_s=9))
    story.exit("algo-1", 143, killed=True, checkpoints=CheckpointFacts(set_number=1, committed_at=at(20)))
    story.exit("algo-2", 143, killed=True).send(events.Released())
    for host in story.hosts:
        assert story.parts(host) == [("productive", 20), ("lost_to_restart", 10)]


def test_an_interrupted_attempt_counts_as_lost_before_its_release():
    story = Story().run().wait(30).send(events.Reclaimed(reason="gone", grace_s=120)).wait(3)
    assert story.parts() == [("lost_to_restart", 30), ("stopping", 3)]


def test_a_program_that_finished_before_the_order_came_keeps_its_time():
    story = Story().run().wait(30).send(events.Reclaimed(reason="gone", grace_s=120)).wait(1)
    story.exit().wait(2).done()
    assert story.job.secondary_status is SecondaryStatus.COMPLETED
    assert story.parts() == [("productive", 30), ("stopping", 1), ("uploading", 2)]


def test_from_the_first_failure_on_the_other_hosts_are_stalled():
    story = Story(("algo-1", "algo-2")).run().wait(30).exit("algo-2", 1).wait(2).exit("algo-1", 143, killed=True)
    story.done("algo-2").wait(3).done("algo-1")
    assert story.job.secondary_status is SecondaryStatus.FAILED
    assert story.parts("algo-1") == [("lost_to_failure", 30), ("stalled", 2), ("uploading", 3)]
    assert story.parts("algo-2")[:2] == [("lost_to_failure", 30), ("stalled", 2)]


def test_a_job_that_dies_at_its_first_import_was_not_productive():
    story = Story().run(after=1).wait(8).exit(code=1).wait(1).done()
    assert story.job.secondary_status is SecondaryStatus.FAILED
    assert story.parts()[1] == ("lost_to_failure", 8)
    assert story.ledger().goodput == 0


def test_a_failed_job_keeps_the_time_up_to_its_last_checkpoint_set():
    story = Story().run().wait(30)
    kept = CheckpointFacts(set_number=2, committed_at=at(22))
    story.exit(code=1, checkpoints=kept).wait(1).done(checkpoints=kept)
    assert story.parts()[:2] == [("productive", 22), ("lost_to_failure", 8)]


def test_a_host_that_is_lost_and_tried_again_is_a_restart():
    story = Story(restart_rule=RestartRule(max_restarts=1)).run().wait(30)
    story.send(events.HostLost(host="algo-1", why="algo-1 was lost")).wait(1).send(events.Released()).wait(2).run()
    assert story.job.secondary_status is SecondaryStatus.TRAINING
    assert story.parts() == [("lost_to_restart", 30), ("stopping", 1), ("queued", 2)]
    book = story.wait(5).ledger()
    assert (book.num_attempts, book.num_reclaimed, book.num_restarted) == (2, 0, 1)
    assert book.seconds["productive"] == 5


def test_a_job_that_is_stopped_is_stopping_until_every_host_has_ended():
    story = Story(("algo-1", "algo-2")).run().wait(30)
    story.send(events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=120)).wait(2).exit("algo-1", 143, killed=True)
    story.wait(6).exit("algo-2", 143, killed=True)
    assert story.parts("algo-1") == [("productive", 30), ("stopping", 2), ("idle_waiting", 6)]
    assert story.parts("algo-2") == [("productive", 30), ("stopping", 8)]


@pytest.mark.parametrize("cause", [EndCause.STOP_REQUESTED, EndCause.MAX_RUNTIME, EndCause.MAX_WAIT, EndCause.RULE])
def test_unsaved_work_of_a_stopped_job_was_not_productive(cause):
    def stopped(*, uploaded=(), committed=None):
        kept = {} if committed is None else {"checkpoints": CheckpointFacts(set_number=1, committed_at=at(committed))}
        story = Story().run().wait(30).send(events.StopWanted(cause=cause, grace_s=120)).wait(2)
        story.exit(code=143, killed=True, **kept)
        assert story.parts()[0] == ("productive", 30), "while it stops, its model may yet come"
        return story.wait(1).done(uploaded=uploaded, **kept)

    story = stopped()
    assert story.job.status is TrainingJobStatus.STOPPED
    assert story.parts()[0] == ("lost_to_stop", 30)
    assert story.ledger().goodput == 0
    assert stopped(committed=22).parts()[:2] == [("productive", 22), ("lost_to_stop", 8)]
    assert stopped(uploaded=("s3://bucket/job/output/model.tar.gz",)).parts()[0] == ("productive", 30)


def test_attempts_without_recorded_hosts_count_as_lost():
    story = Story().run().wait(30).end_early(committed=30)
    assert story.parts() == [("productive", 30)]
    story.job = replace(story.job, past_attempts=(replace(story.job.past_attempts[0], hosts={}),))
    assert story.parts() == [("lost_to_restart", 30)]


TWO = ("algo-1", "algo-2")


def test_every_host_is_in_rendezvous_until_the_last_host_has_connected():
    story = Story(TWO).run().look_for_each_other().wait(2).come("algo-1").wait(5).come("algo-2").wait(50)
    for host in story.hosts:
        story.exit(host)
    for host in story.hosts:
        assert story.parts(host) == [("rendezvous", 7), ("productive", 50)]
    assert story.ledger().goodput == pytest.approx(50 / 57)


def test_a_host_with_several_ranks_is_in_rendezvous_until_they_have_connected():
    story = Story().run().look_for_each_other().wait(4).come().wait(10)
    assert story.parts() == [("rendezvous", 4), ("productive", 10)]


def test_once_one_host_has_connected_time_is_rendezvous_until_all_have():
    story = Story(TWO).run().look_for_each_other().wait(3)
    assert story.parts("algo-1") == story.parts("algo-2") == [("productive", 3)], "nothing tells that they meet at all"
    story.come("algo-1").wait(20)
    assert story.parts("algo-1") == story.parts("algo-2") == [("rendezvous", 23)]


def test_an_attempt_that_ends_before_all_have_connected_was_all_rendezvous():
    story = Story(TWO).run().look_for_each_other().wait(2).come("algo-1").wait(8).exit("algo-2", 1).wait(1)
    story.exit("algo-1", 143, killed=True)
    assert story.parts("algo-1") == story.parts("algo-2") == [("rendezvous", 10), ("stalled", 1)]


def test_an_attempt_that_ends_before_any_connection_has_no_rendezvous():
    story = Story(TWO).run().look_for_each_other().wait(10).exit("algo-2", 1).wait(1)
    story.exit("algo-1", 143, killed=True)
    assert story.parts("algo-1") == [("lost_to_failure", 10), ("stalled", 1)]


def test_a_host_that_succeeds_without_connecting_is_not_waited_for():
    story = Story(TWO).run().look_for_each_other().wait(2).come("algo-1").wait(8).exit("algo-2").wait(30)
    assert story.parts("algo-1") == [("rendezvous", 2), ("productive", 38)]
    assert story.parts("algo-2")[0] == ("productive", 10)


def test_a_host_without_a_watch_is_not_waited_for_and_keeps_its_time():
    story = Story(TWO).run().look_for_each_other("algo-1").wait(2).come("algo-1").wait(8)
    assert story.parts("algo-1") == [("rendezvous", 2), ("productive", 8)]
    assert story.parts("algo-2") == [("productive", 10)]


def test_a_host_that_never_connects_is_waited_for_only_five_minutes():
    story = Story(TWO).run().look_for_each_other().wait(2).come("algo-1").wait(299)
    assert story.parts("algo-2") == [("rendezvous", 301)]
    story.wait(900)
    assert story.parts("algo-1") == [("rendezvous", 2), ("productive", 1199)]
    assert story.parts("algo-2") == [("productive", 1201)]
    story.come("algo-2")
    assert story.parts("algo-2") == [("productive", 1201)], "a number that people have read does not turn round"


def test_a_host_whose_program_has_yet_to_start_is_waited_for():
    story = Story(TWO).ask().all(HostPhase.PREPARING).all(HostPhase.PREPARED).report("algo-1", HostPhase.RUNNING)
    story.look_for_each_other("algo-1").wait(1).come("algo-1").wait(4)
    assert story.parts("algo-1") == [("rendezvous", 5)]


def test_each_attempt_has_a_rendezvous_that_is_no_lost_training():
    story = Story(TWO).run().look_for_each_other().wait(3)
    story.come("algo-1").come("algo-2").wait(20).end_early(committed=18)
    story.wait(5).run().look_for_each_other().wait(6).come("algo-2").come("algo-1").wait(10)
    expected = [("rendezvous", 3), ("productive", 15), ("lost_to_restart", 5), ("queued", 5)]
    for host in story.hosts:
        assert story.parts(host) == [*expected, ("rendezvous", 6), ("productive", 10)]


def test_facts_with_and_without_rendezvous_can_be_read():
    old = from_plain(HostFacts, {"phase": "running", "phase_started_at": at(0).isoformat()})
    assert (old.awaits_rendezvous, old.rendezvous_at) == (False, None)
    new = replace(old, awaits_rendezvous=True, rendezvous_at=at(3))
    assert from_plain(HostFacts, to_plain(new)) == new


def test_times_of_a_wrong_clock_are_clamped_to_the_programs_time():
    for skew in (-500, 200):
        story = Story().run().wait(10)
        story.report("algo-1", HostPhase.RUNNING, rendezvous_at=at(story.seconds + skew)).wait(5)
        assert story.parts() == [("productive" if skew < 0 else "rendezvous", 15)]


@pytest.mark.parametrize(
    ("phase", "timings", "expected"),
    [
        (HostPhase.PREPARING, {"tree": 1.0}, [("downloading", 10)]),
        (HostPhase.PREPARING, {"tree": 1.0, "code": 3.0}, [("downloading", 4), ("installing", 6)]),
        (
            HostPhase.PREPARED,
            {"code": 3.0, "environment": 2.0},
            [("downloading", 3), ("installing", 2), ("idle_waiting", 5)],
        ),
        (HostPhase.PREPARING, {"code": 3.0, "environment": 2.0, "channel:a": 9.0}, [("downloading", 10)]),
    ],
)
def test_an_unfinished_preparation_shows_its_known_parts(phase, timings, expected):
    story = (
        Story(("algo-1", "algo-2")).ask().all(HostPhase.PREPARING).wait(10).report("algo-1", phase, timings_s=timings)
    )
    assert story.parts("algo-1") == expected


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -5.0, 1e300])
def test_impossible_timings_are_ignored(seconds):
    timings = {"algo-1": {"code": seconds, "tree": seconds, "channel:x": seconds}}
    story = Story().run(after=5, timings=timings).wait(10)
    assert story.parts() == [("starting", 5), ("productive", 10)]


# Any history that events can make. Half of the steps advance the job, the others come between them; steps that do not
# fit are ignored, as in a real job.
PHASES = [phase for phase in HostPhase if phase is not HostPhase.LAUNCHING]
BETWEEN = ["report", "wait", "lost", "stop", "reclaim", "reclaim", "launch", "overdue", "ask", "released"]
timing = st.one_of(st.floats(0, 40), st.sampled_from([float("nan"), float("inf"), -1.0, 1e12]))
steps = st.lists(
    st.fixed_dictionaries(
        {
            "action": st.sampled_from(["on"] * 12 + BETWEEN),
            "host": st.integers(0, 2),
            "phase": st.sampled_from(PHASES),
            "code": st.sampled_from([0, 0, 1, None]),
            "timings": st.dictionaries(
                st.sampled_from(["tree", "code", "environment", "channel:a", "checkpoints", "upload"]), timing
            ),
            "committed": st.one_of(st.none(), st.floats(-10, 400)),  # seconds after the start of the job
            "awaits": st.booleans(),
            "met": st.one_of(st.none(), st.floats(-10, 400)),  # seconds after the start of the job
            "passes": st.one_of(st.just(0.0), st.floats(0.5, 30), st.floats(0.5, 30)),  # seconds before the step
            "skew": st.one_of(st.just(0.0), st.floats(-20, 20)),  # seconds that a host's clock is off
        }
    ),
    min_size=5,
    max_size=40,
)


def events_of(step, story, number):
    host = story.hosts[step["host"] % len(story.hosts)]
    streams = tuple(f"job/{name}-1" for name in story.hosts)
    ask = events.HostsAsked(plan=PLAN, host_names=story.hosts, log_streams=streams)
    match step["action"]:
        case "on" if story.job.is_terminal or story.job.is_leaving:
            return [events.Released()]
        case "on" if not story.job.hosts:
            return [ask]
        case "on":
            return [
                report_of(step, story, name, next_phase(story.job.hosts[name].facts), number) for name in story.hosts
            ]
        case "report":
            return [report_of(step, story, host, step["phase"], number)]
        case other:
            return {
                "ask": [ask],
                "wait": [events.MustWait(reason=f"full {number}")],
                "lost": [events.HostLost(host=host, why=f"{host} was lost")],
                "stop": [events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=1)],
                "reclaim": [events.Reclaimed(reason="gone", grace_s=1)],
                "launch": [events.LaunchFailed(message="no", fault=Fault.INFRASTRUCTURE)],
                "overdue": [events.UploadOverdue(limit_s=1)],
                "released": [events.Released()],
            }[other]


def next_phase(facts):
    order = list(HostPhase)
    return order[min(order.index(facts.phase) + 1, order.index(HostPhase.RELEASED))]


def report_of(step, story, host, phase, number):
    last = story.job.hosts[host].facts if host in story.job.hosts else HostFacts(phase=phase, phase_started_at=at(0))
    exits = last.exits
    if phase is HostPhase.EXITED and step["code"] is not None:
        is_told = story.job.ending is not None
        exits = (exit_of(step["code"], seconds=story.seconds + step["skew"], killed=is_told),)
    facts = HostFacts(
        phase=phase,
        phase_started_at=at(story.seconds + step["skew"]),
        timings_s={**last.timings_s, **step["timings"]},
        exits=exits,
        awaits_rendezvous=step["awaits"],
        rendezvous_at=None if step["met"] is None else at(step["met"]),
        checkpoints=None
        if step["committed"] is None
        else CheckpointFacts(set_number=1, committed_at=at(step["committed"])),
    )
    return events.HostReported(host=host, report=Report(number=number, facts=facts))


@settings(max_examples=400)
@given(steps=steps, num_hosts=st.integers(1, 3), later=st.floats(-50, 50))
def test_in_every_history_each_second_of_each_host_is_in_exactly_one_part(steps, num_hosts, later):
    hosts = tuple(f"algo-{index + 1}" for index in range(num_hosts))
    story = Story(hosts, restart_rule=RestartRule(max_restarts=2, includes_programs=True))
    for number, step in enumerate(steps, start=1):
        story.wait(step["passes"])
        for event in events_of(step, story, number):
            story.send(event)
    check_partition(story.job, now=at(story.seconds + later))


RAN = (TimePart.RENDEZVOUS, TimePart.PRODUCTIVE, TimePart.LOST_TO_RESTART)


def check_partition(job, *, now):
    last = job.transitions[-1]
    end = last.ended_at if job.is_terminal else max(now, last.started_at)
    of_hosts = cut_time(job, now=now)
    for stretches in of_hosts.values():
        assert [item.start for item in stretches[1:]] == [item.end for item in stretches[:-1]], "without gaps"
        assert all(item.length > timedelta() for item in stretches)
        assert sum((item.length for item in stretches), timedelta()) == end - job.created_at
        if stretches:
            assert (stretches[0].start, stretches[-1].end) == (job.created_at, end)
        running = sum(
            ((row.ended_at or end) - row.started_at for row in job.transitions if row.status == "Training"), timedelta()
        )
        ran = [item.length for item in stretches if item.part in RAN]
        assert sum(ran, timedelta()) <= running, "a program runs in Training alone"
    book = ledger(job, now=now)
    assert sum(book.seconds.values()) == pytest.approx(book.wall_s * len(of_hosts), abs=1e-3)
    for host in book.hosts:
        assert sum(host.seconds.values()) == pytest.approx(book.wall_s, abs=1e-3)
    assert 0 <= book.goodput <= 1
