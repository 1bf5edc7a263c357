"""Evidence that a file is whole: the table of observations, and marker files of known writers."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from clary.agent.checkpoints.evidence.judging import judge
from clary.agent.checkpoints.evidence.markers import Mark, marked
from clary.agent.checkpoints.evidence.observations import Close, Death, Hold, Observation, ProgramEnd
from clary.agent.checkpoints.evidence.open_files import Holder, hold_of, is_shared_with_machines
from clary.agent.checkpoints.log_names import is_log
from clary.agent.checkpoints.scanning import FileFacts
from clary.contract.checkpoint_evidence import Evidence

CLOSE = Close(after_s=50.0, before_s=51.0)
NOW_S, LEAST_S = 100.0, 30.0
BROKEN, FINISHED = ProgramEnd.BROKEN, ProgramEnd.FINISHED


def death(
    pid: int = 7, *, alive_s: float = 50.5, noticed_s: float = 51.5, status: int | None = signal.SIGKILL
) -> Death:
    return Death(pid=pid, name="python", alive_s=alive_s, noticed_s=noticed_s, wait_status=status)


def seen(hold: Hold = Hold.FREE, *, since_s: float = 80.0, **changes: object) -> Observation:
    return Observation(hold=hold, since_s=since_s, **changes)


MARKED_LAST = seen(close=CLOSE, marker="m", is_marker_seen=True)
WHOLE, WAITS, BLOCKS, TORN = "whole", "waits", "blocks", "torn"
TABLE = {
    "closed, and nobody died": (seen(close=CLOSE), [], None, WHOLE, Evidence.CLOSED),
    "closed long before somebody died": (
        seen(close=CLOSE),
        [death(alive_s=60, noticed_s=61)],
        BROKEN,
        WHOLE,
        Evidence.CLOSED,
    ),
    "closed after somebody had died": (
        seen(close=CLOSE),
        [death(alive_s=10, noticed_s=20)],
        None,
        WHOLE,
        Evidence.CLOSED,
    ),
    "closed when somebody was killed": (seen(close=CLOSE), [death()], None, TORN, Evidence.UNKNOWN),
    "closed when somebody was told to end": (
        seen(close=CLOSE),
        [death(status=signal.SIGTERM)],
        None,
        WAITS,
        Evidence.RESTED,
    ),
    "closed when somebody ended somehow": (seen(close=CLOSE), [death(status=None)], None, WAITS, Evidence.RESTED),
    "closed when its writer failed": (
        seen(close=CLOSE, writers=frozenset({7})),
        [death(status=1 << 8)],
        None,
        TORN,
        Evidence.UNKNOWN,
    ),
    "closed when another than its writer was killed": (
        seen(close=CLOSE, writers=frozenset({8})),
        [death()],
        None,
        WHOLE,
        Evidence.CLOSED,
    ),
    "renamed": (seen(is_named=True), [death()], None, WHOLE, Evidence.RENAMED),
    "renamed, and still open": (seen(Hold.HELD, is_named=True), [], None, BLOCKS, Evidence.UNKNOWN),
    "marked, and still open": (seen(Hold.HELD, marker="m"), [], None, BLOCKS, Evidence.UNKNOWN),
    "marked, though its writer was killed": (MARKED_LAST, [death()], BROKEN, TORN, Evidence.UNKNOWN),
    "marked, when its writer had failed": (
        replace(MARKED_LAST, writers=frozenset({7})),
        [death(status=1 << 8)],
        None,
        TORN,
        Evidence.UNKNOWN,
    ),
    "marked, though somebody had ended somehow": (MARKED_LAST, [death(status=None)], BROKEN, WHOLE, Evidence.MARKED),
    "marked by its times alone": (seen(marker="m"), [], None, WHOLE, Evidence.MARKED),
    "marked by its times alone, though its writer was killed": (
        seen(close=CLOSE, marker="m"),
        [death()],
        None,
        TORN,
        Evidence.UNKNOWN,
    ),
    "marked by its times alone, though its writer ended somehow": (
        seen(close=CLOSE, marker="m", writers=frozenset({7})),
        [death(status=None)],
        None,
        WAITS,
        Evidence.RESTED,
    ),
    "marked by its times alone, on a full disk": (
        seen(marker="m", was_disk_full=True),
        [],
        None,
        TORN,
        Evidence.UNKNOWN,
    ),
    "open, however long it rests": (seen(Hold.HELD, since_s=-1e6), [], None, BLOCKS, Evidence.UNKNOWN),
    "open, and closed once": (seen(Hold.HELD, close=CLOSE), [], None, BLOCKS, Evidence.UNKNOWN),
    "nothing known": (seen(Hold.UNKNOWN), [], None, WAITS, Evidence.RESTED),
    "nothing known, at rest": (seen(Hold.UNKNOWN, since_s=69.0), [], None, WHOLE, Evidence.RESTED),
    "nothing known, at rest for less than ten times the longest pause": (
        seen(Hold.UNKNOWN, since_s=60.0, longest_pause_s=4.1),
        [],
        None,
        WAITS,
        Evidence.RESTED,
    ),
    "written on a full disk": (seen(close=CLOSE, was_disk_full=True, since_s=-1e6), [], None, TORN, Evidence.UNKNOWN),
    "renamed on a full disk": (seen(is_named=True, was_disk_full=True), [], None, WHOLE, Evidence.RENAMED),
    "a log that is open": (seen(Hold.HELD, is_log=True), [], None, WHOLE, Evidence.LOG),
    "a log that was cut": (seen(is_log=True), [death()], BROKEN, WHOLE, Evidence.LOG),
    "nothing known at a bad end": (seen(Hold.UNKNOWN), [], BROKEN, TORN, Evidence.RESTED),
    "closed by the end of all": (seen(close=CLOSE), [death(status=None)], BROKEN, TORN, Evidence.RESTED),
    "closed when somebody ended somehow, once the program ended with 0": (
        seen(close=CLOSE),
        [death(status=None)],
        FINISHED,
        WHOLE,
        Evidence.ENDED,
    ),
    "closed when somebody was killed, once the program ended with 0": (
        seen(close=CLOSE),
        [death()],
        FINISHED,
        WHOLE,
        Evidence.RESTED,
    ),
    "closed, once the program ended with 0": (seen(close=CLOSE), [], FINISHED, WHOLE, Evidence.CLOSED),
    "not seen to be closed, once the program ended with 0": (seen(), [], FINISHED, WHOLE, Evidence.ENDED),
    "open, though the program ended with 0": (seen(Hold.HELD), [], FINISHED, BLOCKS, Evidence.UNKNOWN),
    "maybe of another machine, once the program ended with 0": (
        seen(Hold.UNKNOWN),
        [],
        FINISHED,
        WHOLE,
        Evidence.RESTED,
    ),
    "of a writer that was killed, once the program ended with 0": (
        seen(close=CLOSE, writers=frozenset({7})),
        [death()],
        FINISHED,
        WHOLE,
        Evidence.RESTED,
    ),
    "written on a full disk, once the program ended with 0": (
        seen(close=CLOSE, was_disk_full=True),
        [],
        FINISHED,
        WHOLE,
        Evidence.RESTED,
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_a_decision_follows_from_the_observations(case: str) -> None:
    observation, deaths, end, outcome, evidence = TABLE[case]
    decision = judge(observation, deaths, now_s=NOW_S, least_rest_s=LEAST_S, end=end)
    found = TORN if decision.is_torn else BLOCKS if decision.is_blocking else WHOLE if decision.is_whole else WAITS
    assert (found, decision.evidence) == (outcome, evidence), decision
    assert decision.is_whole or decision.reason


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("train.log", True),
        ("a/metrics.jsonl", True),
        ("events.out.tfevents.1.host.2.0", True),
        ("a.log/model", False),
        ("log", False),
        ("catalog", False),
        ("latest.txt", False),
        ("model.pt", False),
    ],
)
def test_logs_are_recognised_by_their_names(path: str, expected: bool) -> None:
    assert is_log(path) == expected


def files(**times: int) -> dict[str, FileFacts]:
    return {
        name.replace("__", "/").replace("_dot_", "."): FileFacts(
            size_bytes=1, modified_ns=modified_ns, changed_ns=modified_ns, inode=1, mode=0o644
        )
        for name, modified_ns in times.items()
    }


MARKED = {
    "torch": (files(ck__shard=1, ck___dot_metadata=2), {}, {"ck/shard": "ck/.metadata"}),
    "torch, written again": (files(ck__shard=3, ck___dot_metadata=2), {}, {}),
    "torch, beside other folders": (files(_dot_metadata=2, ck__shard=1, shard=1), {}, {"shard": ".metadata"}),
    "Trainer": (
        files(c__trainer_state_dot_json=5, c__model=4, c__global_step1__rank=3),
        {},
        {"c/model": "c/trainer_state.json", "c/global_step1/rank": "c/trainer_state.json"},
    ),
    "DeepSpeed": (files(latest=2, tag__a=1, other__a=1), {"latest": "tag\n"}, {"tag/a": "latest"}),
    "DeepSpeed, below a folder": (
        files(x__latest=2, x__tag__a=1, tag__a=1),
        {"x/latest": "tag"},
        {"x/tag/a": "x/latest"},
    ),
    "DeepSpeed, leading out": (files(x__latest=2, y__a=1), {"x/latest": "../y"}, {}),
    "Megatron": (
        files(latest_checkpointed_iteration_dot_txt=2, iter_0000100__a=1, iter_0000200__a=1),
        {"latest_checkpointed_iteration.txt": "100"},
        {"iter_0000100/a": "latest_checkpointed_iteration.txt"},
    ),
    "Megatron's release": (
        files(latest_checkpointed_iteration_dot_txt=2, release__a=1),
        {"latest_checkpointed_iteration.txt": "release"},
        {},
    ),
    "ours": (
        {**files(s__checkpoint_dot_json=2), "s/part-00000.bin": files(x=1)["x"]},
        {},
        {"s/part-00000.bin": "s/checkpoint.json"},
    ),
    "a name that anybody may use": (files(s__checkpoint_dot_json=2, s__model=1), {}, {}),
}


@pytest.mark.parametrize("case", MARKED)
def test_a_marker_vouches_for_files_written_before_it(case: str) -> None:
    found, texts, expected = MARKED[case]

    def marks(*, is_whole: bool = True, came_last: bool | None = None) -> dict[str, Mark]:
        return marked(
            found,
            is_whole=lambda path: is_whole,
            text_of=lambda path: texts.get(path, ""),
            came_last=lambda marker, path: came_last,
        )

    assert marks() == {path: Mark(marker, is_seen=False) for path, marker in expected.items()}
    assert marks(is_whole=False) == {}
    assert marks(came_last=False) == {}, "times count for nothing where it was seen what came last"
    seen_last = marks(came_last=True)
    assert all(mark.is_seen for mark in seen_last.values())
    assert {path: seen_last[path].path for path in expected} == expected


def test_timestamps_show_that_a_marker_came_last_only_if_both_agree() -> None:
    state = files(x=5)["x"]
    shard, marker = replace(state, modified_ns=1, changed_ns=6), state

    def is_marked(shard: FileFacts) -> bool:
        found = {"shard": shard, ".metadata": marker}
        return bool(marked(found, is_whole=lambda _: True, text_of=lambda _: "", came_last=lambda marker, path: None))

    assert not is_marked(shard), "a copy that keeps the time of what was copied"
    assert is_marked(replace(shard, changed_ns=5))
    assert not is_marked(replace(state, modified_ns=6))


def test_holders_of_a_file_are_found_from_leases_and_proc() -> None:
    writes = Holder(pid=2, name="b")
    assert hold_of(Hold.FREE, [writes]) is Hold.FREE, "it was closed between the two looks"
    assert hold_of(Hold.HELD, []) is Hold.HELD
    assert hold_of(Hold.UNKNOWN, []) is Hold.UNKNOWN
    assert hold_of(Hold.UNKNOWN, [writes]) is Hold.HELD
    assert hold_of(Hold.HELD, [writes]) is Hold.HELD


def test_file_systems_shared_between_machines_are_recognised_by_type() -> None:
    mounts = (
        "36 35 0:33 / /data rw,noatime master:1 - nfs4 server:/x rw\n"
        "37 35 254:0 / / rw - ext4 /dev/vda rw\n38 35 0:40 / /f rw shared:2 - fuse.sshfs x rw\n"
    )
    assert is_shared_with_machines(33, mounts=mounts)
    assert is_shared_with_machines(40, mounts=mounts)
    assert not is_shared_with_machines(254 << 8, mounts=mounts)
    assert not is_shared_with_machines(99, mounts=mounts)
