"""The checks of results in the benchmarks of collectives: correct results pass, wrong ones are found."""

import itertools
import json
import os
import subprocess
from pathlib import Path

import pytest
from benchmarks.collectives.collective_board import make_board
from benchmarks.collectives.collective_compare import calls_a_sample
from benchmarks.service import TRAIN_PYTHON

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("benchmark_checks_program.py")
DEADLINE_S = 50.0
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
SEEN_EVERYWHERE = ("one_element_off", "all_slightly_off", "last_element_missing", "not_a_number")


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    """By collective and defect: the problems that both ranks found, and the numbers of samples that they took."""
    folder = tmp_path_factory.mktemp("checks")
    make_board(folder / "board", 2)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    ranks = [
        subprocess.Popen(
            [TRAIN_PYTHON, PROGRAM, str(folder), str(rank)], stdout=subprocess.PIPE, text=True, env=environment
        )
        for rank in (0, 1)
    ]
    found = {}
    try:
        for rank in ranks:
            output, _ = rank.communicate(timeout=DEADLINE_S)
            assert rank.returncode == 0
            for line in map(json.loads, output.splitlines()):
                problems, times = found.setdefault((line["collective"], line["defect"]), ([], []))
                problems += line["problems"]
                times.append(line["num_times"])
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    return found


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_right_results_pass_and_every_sample_is_timed(findings, collective):
    problems, num_times = findings[collective, "nothing"]
    assert problems == []
    assert num_times == [2, 2]


@pytest.mark.parametrize(("collective", "defect"), list(itertools.product(COLLECTIVES, SEEN_EVERYWHERE)))
def test_a_wrong_result_is_reported_by_every_rank_for_every_sample(findings, collective, defect):
    problems, _ = findings[collective, defect]
    assert len(problems) == 4
    assert {problem.split(": ")[0] for problem in problems} == {
        f"sample {sample} on rank {rank}" for sample in (0, 1) for rank in (0, 1)
    }


def test_one_bit_that_differs_between_ranks_is_reported(findings):
    for collective, words in (("all_reduce", "bits differ between ranks"), ("all_gather", "are not what these put in")):
        problems, _ = findings[collective, "one_bit_on_one_rank"]
        assert problems
        assert all(words in problem for problem in problems)


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 8, 64])
def test_repeated_sums_in_place_stay_within_float32(num_ranks):
    for call_s in (1e-7, 1e-4, 0.5):
        assert 0.5 * float(num_ranks) ** calls_a_sample(call_s, num_ranks) < 1e30
        assert calls_a_sample(call_s, num_ranks) >= 1
