"""Lines of squeue 22.05, recorded from a real cluster, and lines that another user may make squeue print."""

from datetime import UTC, datetime

import pytest

from clary.control.engines.slurm.queue_rows import (
    JobRow,
    Phase,
    StepRow,
    comment_of,
    read_jobs,
    read_limit_s,
    read_steps,
    read_time,
)

MARK = "0f3a99c2"
TAG = "pool_0123456789ab"
# squeue --noheader --all --states=all --user=0 --format=JOB_FORMAT
RECORDED = f"""\
7|7|0|PENDING||train|2026-11-26T18:30:08|2026-11-26T17:30:08|2026-11-26T18:00:08|30:00|1|Resources|clary:{MARK}:{TAG}:1:30
6|6|0|RUNNING|node-[1-2]|train|2026-11-26T18:00:08|2026-11-26T17:30:08|2026-11-26T17:30:08|30:00|2|None|clary:{MARK}:{TAG}:0-1:30
4|4+0|0|RUNNING|node-1|train|2026-11-26T17:29:16|2026-11-26T16:59:11|2026-11-26T16:59:16|30:00|1|None|clary:{MARK}:{TAG}:0-1:30
5|4+1|0|RUNNING|node-3|train|2026-11-26T17:29:16|2026-11-26T16:59:11|2026-11-26T16:59:16|30:00|1|None|clary:{MARK}:{TAG}:2:30
9|9|0|RUNNING|node-3|spot|N/A|2026-11-26T16:59:34|2026-11-26T16:59:34|UNLIMITED|1|None|(null)
"""
RECORDED_STEPS = "6.0|0|node-2|algo-2\n6.1|0|node-1|algo-1\n6.batch|0|node-1|batch\n5.1|0|node-3|algo-2\n"


def at(hour, minute, second):
    return datetime(2026, 11, 26, hour, minute, second, tzinfo=UTC)


def line(*, uid="0", comment=f"clary:{MARK}:{TAG}:0:30", state="RUNNING", reason="None"):
    return f"6|6|{uid}|{state}|node-1|train|N/A|N/A|N/A|30:00|1|{reason}|{comment}\n"


def test_recorded_lines_are_read_as_jobs_of_ours():
    waits, runs, leader, component = read_jobs(RECORDED, mark=MARK, uid=0)
    assert runs == JobRow(
        job_id=6,
        leader_id=6,
        state="RUNNING",
        reason="None",
        nodes=("node-1", "node-2"),
        partition="train",
        tag=TAG,
        indices=(0, 1),
        grace_s=30,
        end_at=at(18, 0, 8),
        submitted_at=at(17, 30, 8),
        started_at=at(17, 30, 8),
        limit_s=1800.0,
    )
    assert (waits.phase, waits.nodes, waits.reason, waits.indices) == (Phase.WAITS, (), "Resources", (1,))
    assert (leader.job_id, leader.leader_id) == (4, 4)
    assert (component.job_id, component.leader_id, component.indices) == (5, 4, (2,))


def test_recorded_steps_are_read_by_host():
    assert read_steps(RECORDED_STEPS, uid=0) == (
        StepRow(job_id=6, step_id="6.0", index=1, node="node-2"),
        StepRow(job_id=6, step_id="6.1", index=0, node="node-1"),
        StepRow(job_id=5, step_id="5.1", index=1, node="node-3"),
    )
    assert read_steps(RECORDED_STEPS, uid=1000) == ()


def test_comments_survive_writing_and_reading():
    comment = comment_of(MARK, TAG, (0, 1, 2, 5), 30)
    (row,) = read_jobs(line(comment=comment), mark=MARK, uid=0)
    assert (row.tag, row.indices, row.grace_s) == (TAG, (0, 1, 2, 5), 30)


@pytest.mark.parametrize(
    "text",
    [
        line(uid="1000"),
        line(uid="00x"),
        line(uid="0 "),
        line(comment=f"clary:deadbeef:{TAG}:0:30"),
        line(comment=f"clary:{MARK}:{TAG}:0"),
        line(comment=f"clary:{MARK}:{TAG}:0:30 "),
        line(comment=f"x clary:{MARK}:{TAG}:0:30"),
        line(comment=f"clary:{MARK}:../{TAG}:0:30"),
        line(comment=f"clary:{MARK}:{TAG}:0-99999999999:30"),
        line(comment=f"clary:{MARK}:{TAG}:2-1:30"),
        line(comment="(null)"),
        f"clary:{MARK}:{TAG}:0:30\n",
        f"6|6|0|RUNNING|clary:{MARK}:{TAG}:0:30\n",
        "|||||||||||||\n",
        "",
    ],
)
def test_jobs_of_other_users_services_and_forms_are_skipped(text):
    assert read_jobs(text, mark=MARK, uid=0) == ()


def test_a_reason_may_hold_bars_and_an_unknown_state_loses_no_job():
    (row,) = read_jobs(line(state="NEW_WORD", reason="a | b"), mark=MARK, uid=0)
    assert (row.reason, row.phase, row.is_living) == ("a | b", Phase.RUNS, True)


@pytest.mark.parametrize("name", ["algo-0", "algo-01", "algo--1", "algo-1x", "algo-9999999", "algo-\u0661", ""])
def test_steps_with_other_names_are_no_hosts(name):
    assert read_steps(f"6.0|0|node-2|{name}\n", uid=0) == ()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30:00", 1800.0), ("1:00", 60.0), ("2:00:00", 7200.0), ("2-00:00:00", 172800.0)]
    + [(text, None) for text in ("UNLIMITED", "infinite", "NOT_SET", "INVALID", "n/a", "")],
)
def test_limits_are_read_in_seconds(text, seconds):
    assert read_limit_s(text) == seconds


def test_times_are_in_utc_and_other_text_is_no_time():
    assert read_time("2026-11-26T17:30:08") == at(17, 30, 8)
    assert read_time("N/A") is None


def test_an_end_before_the_time_limit_is_recognised():
    (row,) = read_jobs(RECORDED.splitlines()[1], mark=MARK, uid=0)
    assert not row.ends_early
    early = RECORDED.splitlines()[1].replace("2026-11-26T18:00:08", "2026-11-26T17:30:30")
    assert read_jobs(early, mark=MARK, uid=0)[0].ends_early
