"""Steps of ranks as series: files that `train.steps` writes, and files that programs forge."""

import os

import pytest

from clary.agent.metrics.step_source import StepSource
from clary.contract.metric_samples import SERIES_NAME
from clary.contract.step_records import HEADER_BYTES, NUM_ROWS, StepRow, pack_header, pack_row
from clary.train.steps.step_file import StepFile


def row(number, step_s=2.0, at_s=None):
    return StepRow(number, 1000.0 + number if at_s is None else at_s, step_s, 0.1, 0.2, 0.3, 0.4, 0.5)


@pytest.fixture
def source(tmp_path):
    source = StepSource(tmp_path)
    yield source
    source.close()


@pytest.fixture
def rank_3(tmp_path):
    file = StepFile(str(tmp_path), 3)
    yield file
    file.close()


def test_steps_since_the_last_row_become_means_and_the_longest(source, rank_3):
    rank_3.write(row(1, 100.0))
    rank_3.write(row(2, 1.0))
    rank_3.write(row(3, 4.0))
    values = source.read(0.0)
    assert values == {
        "rank-3/steps": 3.0,
        "rank-3/step_s": 2.5,
        "rank-3/step_max_s": 4.0,
        "rank-3/data_wait_s": 0.1,
        "rank-3/forward_s": 0.2,
        "rank-3/backward_s": 0.3,
        "rank-3/communication_s": 0.4,
        "rank-3/optimizer_s": 0.5,
    }
    assert all(SERIES_NAME.fullmatch(name) for name in values)
    assert source.read(0.5) == {"rank-3/steps": 3.0}
    rank_3.write(row(4, 7.0))
    assert source.read(1.0)["rank-3/step_s"] == 7.0


def test_a_first_step_alone_is_counted_and_not_measured(source, rank_3):
    rank_3.write(row(1))
    assert source.read(0.0) == {"rank-3/steps": 1.0}


def test_every_step_is_read_once_however_often_the_ring_goes_round(source, rank_3):
    number, seen = 0, 0
    for burst in (1, 15, 16, 17, 100, NUM_ROWS - 1, NUM_ROWS, 3):
        for _ in range(burst):
            number += 1
            rank_3.write(row(number, float(number)))
        values = source.read(0.5 * number)
        assert values["rank-3/steps"] == number
        mean = sum(range(max(2, seen + 1), number + 1)) / max(1, number - max(1, seen))
        assert values.get("rank-3/step_s", 0.0) == (mean if number > 1 else 0.0)
        seen = number


def test_rows_overwritten_before_a_read_are_lost_and_the_others_are_read(source, rank_3):
    for number in range(1, 4):
        rank_3.write(row(number))
    source.read(0.0)
    for number in range(4, 3 * NUM_ROWS):
        rank_3.write(row(number))
    assert source.read(5.0)["rank-3/steps"] == 3 * NUM_ROWS - 1


def test_of_two_processes_with_one_rank_the_one_that_stepped_last_is_shown(source, tmp_path):
    for process, at_s, step_s in ((1, 50.0, 1.0), (2, 60.0, 9.0), (3, 40.0, 1.0)):
        body = pack_row(row(1, at_s=at_s)) + pack_row(row(2, step_s, at_s=at_s))
        (tmp_path / f"0-{process}.steps").write_bytes(pack_header(0, process) + body)
    assert source.read(0.0)["rank-0/step_s"] == 9.0


def test_a_torn_row_is_left_for_later(source, tmp_path):
    path = tmp_path / "0-1.steps"
    whole = pack_row(row(3))
    path.write_bytes(pack_header(0, 1) + pack_row(row(1)) + pack_row(row(2)) + whole[:20])
    assert source.read(0.0)["rank-0/steps"] == 2.0
    path.write_bytes(pack_header(0, 1) + pack_row(row(1)) + pack_row(row(2)) + whole)
    assert source.read(1.0)["rank-0/steps"] == 3.0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing",
        b"\xff" * 4096,
        pack_header(-1, 1) + pack_row(row(1)),
        pack_header(1 << 40, 1) + pack_row(row(1)),
    ],
)
def test_files_of_another_kind_are_ignored(source, tmp_path, body):
    (tmp_path / "0-1.steps").write_bytes(body)
    assert source.read(0.0) == {}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_rows_with_impossible_values_are_left_out(source, tmp_path, value):
    data = pack_header(0, 1) + pack_row(row(1)) + pack_row(row(2, value))
    (tmp_path / "0-1.steps").write_bytes(data)
    assert source.read(0.0) == {"rank-0/steps": 1.0}


def test_links_fifos_and_folders_are_neither_followed_nor_waited_for(source, tmp_path):
    (tmp_path / "real").write_bytes(pack_header(0, 1) + pack_row(row(1)) + pack_row(row(2)))
    os.symlink(tmp_path / "real", tmp_path / "0-1.steps")
    os.mkfifo(tmp_path / "0-2.steps")
    (tmp_path / "0-3.steps").mkdir()
    assert source.read(0.0) == {}


def test_a_folder_that_is_not_there_has_no_steps(tmp_path):
    assert StepSource(tmp_path / "none").read(0.0) == {}


def test_a_file_that_is_cut_short_while_it_is_read_ends_quietly(source, rank_3, tmp_path):
    rank_3.write(row(1))
    source.read(0.0)
    (path,) = tmp_path.glob("*.steps")
    os.truncate(path, HEADER_BYTES)
    assert source.read(1.0) == {"rank-3/steps": 1.0}


def test_a_file_found_before_its_header_was_written_is_read_later(source, tmp_path):
    path = tmp_path / "3-1.steps"
    path.touch()
    assert source.read(0.0) == {}
    path.write_bytes(pack_header(3, 1) + pack_row(row(1)))
    assert source.read(60.0) == {"rank-3/steps": 1.0}


def test_another_program_in_the_same_process_begins_from_its_first_step(source, tmp_path):
    path = tmp_path / "3-1.steps"
    path.write_bytes(pack_header(3, 1) + b"".join(pack_row(row(number)) for number in range(1, 8)))
    assert source.read(0.0)["rank-3/steps"] == 7.0
    path.write_bytes(pack_header(3, 1) + pack_row(row(1)) + pack_row(row(2, step_s=4.0)))
    found = source.read(1.0)
    assert (found["rank-3/steps"], found["rank-3/step_s"]) == (2.0, 4.0)
