"""Records that ranks leave, exceptions in output, and programs that write nonsense into both."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.agent.supervisor.clues import MAX_RECORDS, merge, read_records
from clary.agent.supervisor.error_scanner import ErrorScanner
from clary.contract.agent_protocol import Clue

START = datetime(2026, 1, 1, tzinfo=UTC)


def scan(*lines, rank=None):
    scanner = ErrorScanner(rank)
    for number, line in enumerate(lines):
        scanner.feed(line, START + timedelta(seconds=number))
    return {clue.rank: (clue.text, (clue.at - START).total_seconds()) for clue in scanner.clues}


def put(folder, name, **record):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(record))


def test_records_are_read_with_rank_time_and_words(tmp_path):
    put(tmp_path / "run/errors", "2-77.json", rank=2, at=1_767_225_600.5, text="ValueError: x")
    put(tmp_path / "run/errors", "program-78.json", rank=None, at=1_767_225_601, text="SystemExit: exit code 3")
    first, second = read_records(tmp_path, ("run", "errors"))
    assert first == Clue(rank=2, at=datetime(2026, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC), text="ValueError: x")
    assert second.rank is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"rank": 0, "at": 1}',
        b'{"rank": "0", "at": 1, "text": "x"}',
        b'{"rank": true, "at": 1, "text": "x"}',
        b'{"rank": -1, "at": 1, "text": "x"}',
        b'{"rank": 0, "at": 1e300, "text": "x"}',
        b'{"rank": 0, "at": NaN, "text": "x"}',
        b'{"rank": 0, "at": 1, "text": 7}',
        b"[" * 10_000,
        b'{"rank": 0, "at": 1, "text": "' + b"x" * 20_000 + b'"}',
    ],
)
def test_records_that_make_no_sense_are_left_out(tmp_path, content):
    (tmp_path / "bad.json").write_bytes(content)
    put(tmp_path, "good.json", rank=1, at=1, text="ok")
    assert [clue.text for clue in read_records(tmp_path, ())] == ["ok"]


def test_no_link_is_followed_and_no_pipe_is_waited_for(tmp_path):
    import os

    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"rank": 0, "at": 1, "text": "secret"}))
    folder = tmp_path / "tree/errors"
    folder.mkdir(parents=True)
    (folder / "a.json").symlink_to(secret)
    os.mkfifo(folder / "b.json")
    (tmp_path / "tree/link").symlink_to(tmp_path)
    assert read_records(tmp_path / "tree", ("errors",)) == ()
    assert read_records(tmp_path / "tree", ("link",)) == ()


def test_more_records_than_any_host_has_ranks_are_not_all_read(tmp_path):
    for number in range(MAX_RECORDS + 5):
        put(tmp_path, f"{number}.json", rank=number, at=1, text="x")
    assert len(read_records(tmp_path, ())) == MAX_RECORDS


def test_an_exception_is_found_below_its_traceback():
    found = scan("epoch 1", "Traceback (most recent call last):", '  File "a.py", line 1', "ValueError: no", rank=3)
    assert found == {3: ("ValueError: no", 3)}


def test_lines_that_carry_their_rank_are_told_apart():
    found = scan(
        "[rank1]: Traceback (most recent call last):",
        "[1,0]<stderr>:Traceback (most recent call last):",
        "[rank1]:   File x",
        "[rank1]: KeyError: 'a'",
        "[1,0]<stderr>:OSError: b",
    )
    assert found == {1: ("KeyError: 'a'", 3), 0: ("OSError: b", 4)}


def test_an_exception_that_the_program_survived_gives_way_to_the_last():
    head = "Traceback (most recent call last):"
    assert scan(head, "ValueError: harmless", "epoch 2", head, "KeyError: last") == {None: ("KeyError: last", 4)}


def test_a_chain_has_the_words_of_its_end_and_the_time_of_its_beginning():
    head = "Traceback (most recent call last):"
    found = scan(
        head, "KeyError: a", "", "During handling of the above exception, another exception occurred:", head, "X: b"
    )
    assert found == {None: ("X: b", 1)}


def test_a_rank_that_a_signal_ended_is_told_by_its_launcher():
    found = scan(
        "E1121 api.py:874] failed (exitcode: -9) local_rank: 1 (pid: 42) of binary: /usr/bin/python",
        "Traceback (most recent call last):",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    )
    assert found == {None: ("local rank 1 was ended by signal 9 (SIGKILL)", 0)}
    found = scan(
        "mpirun noticed that process rank 2 with PID 0 on node algo-2 exited on signal 11 (Segmentation fault)."
    )
    assert list(found) == [2]


@given(st.lists(st.text(max_size=60)))
def test_no_line_upsets_the_scanner(lines):
    scan(*lines)


def test_records_stand_before_what_output_looks_like():
    def clue(rank, seconds, text):
        return Clue(rank=rank, at=START + timedelta(seconds=seconds), text=text)

    records = [clue(0, 2, "record"), clue(0, 3, "later record")]
    scanned = [clue(0, 1, "scanned"), clue(1, 5, "only scanned")]
    assert [item.text for item in merge(records, scanned)] == ["record", "only scanned"]
