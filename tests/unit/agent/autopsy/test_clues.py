"""Records that ranks leave, exceptions in output, and programs that write invalid data into both."""

import json
import os
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.agent.autopsy.clues import MAX_RECORDS, merge, read_records
from clary.agent.launchers.shims import clary_rank
from clary.agent.log.error_scanner import MAX_RANKS, ErrorScanner
from clary.contract.agent_protocol import MAX_CLUE_CHARACTERS, Clue

START = datetime(2026, 1, 1, tzinfo=UTC)


def scan(*lines, rank=None):
    scanner = ErrorScanner(rank)
    for number, line in enumerate(lines):
        scanner.feed(line, START + timedelta(seconds=number))
    return {clue.rank: (clue.text, (clue.at - START).total_seconds()) for clue in scanner.clues}


def put(folder, name, **record):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(record))


def test_records_are_read_with_rank_time_and_message(tmp_path):
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


@pytest.mark.parametrize(
    "step", ["opt", "opt/ml", "opt/ml/.clary", "opt/ml/.clary/errors", "opt/ml/.clary/errors/a.json"]
)
@pytest.mark.parametrize("is_absolute", [True, False])
def test_no_link_is_followed_in_any_part_of_the_path_to_records(tmp_path, monkeypatch, step, is_absolute):
    """A program owns the folders above its records, and may replace any of them by a link to folders of the machine."""
    looked_at = []
    scan_folder = os.scandir

    def scandir(place):
        looked_at.append(os.path.realpath(f"/proc/self/fd/{place}" if isinstance(place, int) else place))
        return scan_folder(place)

    monkeypatch.setattr(os, "scandir", scandir)
    place = "opt/ml/.clary/errors/a.json"
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder, text in ((root, "own"), (outside, "secret")):
        put((folder / place).parent, "a.json", rank=0, at=1, text=text)
    assert [clue.text for clue in read_records(root, place.split("/")[:-1])] == ["own"]
    planted = root / step
    planted.rename(tmp_path / "aside")
    target = outside / step
    planted.symlink_to(target if is_absolute else os.path.relpath(target, planted.parent))
    assert planted.exists(), "the link leads somewhere"
    assert read_records(root, place.split("/")[:-1]) == ()
    assert [path for path in looked_at if not path.startswith(os.path.realpath(root))] == []


def test_pipes_do_not_block_and_a_file_in_place_of_the_folder_has_no_records(tmp_path):
    folder = tmp_path / "errors"
    folder.mkdir()
    os.mkfifo(folder / "b.json")
    (folder / "c.json").mkdir()
    (tmp_path / "file").write_text("x")
    for parts in (("errors",), ("file",), ("file", "errors"), ("none",), ("errors", "b.json")):
        assert read_records(tmp_path, parts) == ()


def test_more_records_than_any_host_has_ranks_are_not_all_read(tmp_path):
    for number in range(MAX_RECORDS + 5):
        put(tmp_path, f"{number}.json", rank=number, at=1, text="x")
    assert len(read_records(tmp_path, ())) == MAX_RECORDS


def test_an_exception_is_found_below_its_traceback():
    found = scan("epoch 1", "Traceback (most recent call last):", '  File "a.py", line 1', "ValueError: no", rank=3)
    assert found == {3: ("ValueError: no", 3)}


def test_exceptions_in_lines_with_rank_prefixes_are_separated_by_rank():
    found = scan(
        "[rank1]: Traceback (most recent call last):",
        "[1,0]<stderr>:Traceback (most recent call last):",
        "[rank1]:   File x",
        "[rank1]: KeyError: 'a'",
        "[1,0]<stderr>:OSError: b",
    )
    assert found == {1: ("KeyError: 'a'", 3), 0: ("OSError: b", 4)}


def test_the_last_exception_replaces_one_that_the_program_survived():
    head = "Traceback (most recent call last):"
    assert scan(head, "ValueError: harmless", "epoch 2", head, "KeyError: last") == {None: ("KeyError: last", 4)}


def test_a_chain_of_exceptions_has_the_last_message_and_the_first_time():
    head = "Traceback (most recent call last):"
    found = scan(
        head, "KeyError: a", "", "During handling of the above exception, another exception occurred:", head, "X: b"
    )
    assert found == {None: ("X: b", 1)}


def test_a_launcher_line_names_a_rank_that_a_signal_ended():
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


def test_mpiruns_line_on_an_exit_code_is_used_where_the_rank_printed_nothing():
    words = (
        "mpirun detected that one or more processes exited with non-zero status, thus causing",
        "the job to be terminated. The first process to do so was:",
        "",
        "  Process name: [[54321,1],1]",
        "  Exit code:    137",
    )
    assert scan(*words) == {1: ("was ended by signal 9 (SIGKILL)", 4)}
    assert scan(*words[:-1], "  Exit code:    3") == {1: ("ended with exit code 3", 4)}
    own = "[1,mpirank:1,algo-1]<stderr>:"
    raised = (f"{own}Traceback (most recent call last):", f'{own}  File "x.py", line 1', f"{own}ValueError: no")
    assert scan(*raised, *words) == {1: ("ValueError: no", 2)}


def test_a_syntax_error_is_found_without_a_traceback_header():
    found = scan('  File "train.py", line 3', "    x = = 1", "        ^", "SyntaxError: invalid syntax", rank=0)
    assert found == {0: ("SyntaxError: invalid syntax", 3)}


def test_an_exception_of_a_cpp_library_is_found_with_its_text():
    found = scan(
        "[rank1]: terminate called after throwing an instance of 'c10::DistBackendError'",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "[rank1]:   what():  [PG 0 Rank 1] Process group watchdog thread terminated with exception",
        "  what():  std::bad_alloc",
    )
    assert found == {
        1: ("c10::DistBackendError: [PG 0 Rank 1] Process group watchdog thread terminated with exception", 2),
        None: ("std::bad_alloc: std::bad_alloc", 3),
    }


def test_a_program_that_marks_its_lines_with_ever_new_ranks_has_no_more_clues_than_a_host_has_ranks():
    lines = [
        text
        for rank in range(MAX_RANKS + 50)
        for text in (f"[rank{rank}]: Traceback (most recent call last):", f"[rank{rank}]: SyntaxError: x")
    ]
    lines += [f"[rank{rank}]: SyntaxError: y" for rank in range(MAX_RANKS + 50)]
    assert len(scan(*lines)) == MAX_RANKS


def test_ranks_cut_messages_at_the_same_length_as_the_agent():
    assert clary_rank.MAX_ERROR_CHARACTERS == MAX_CLUE_CHARACTERS


@given(st.lists(st.text(max_size=60)))
def test_no_line_upsets_the_scanner(lines):
    scan(*lines)


def test_records_take_precedence_over_output():
    def clue(rank, seconds, text):
        return Clue(rank=rank, at=START + timedelta(seconds=seconds), text=text)

    records = [clue(0, 2, "record"), clue(0, 3, "later record")]
    scanned = [clue(0, 1, "scanned"), clue(1, 5, "only scanned")]
    assert [item.text for item in merge(records, scanned)] == ["record", "only scanned"]
