"""A rank of a pipeline is killed at every action of its schedule: all other ranks end with an error that names it."""

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from torch_ranks import ROOT, TRAIN_PYTHON

PROGRAM = Path(__file__).with_name("pipeline_kills_program.py")
SIGKILLED = -9
_LIMIT_S = 110
_WHERE = re.compile(r"\d+[FBIW]\d+ \([a-z ]+ of stage \d+, microbatch \d+\)")


@cache
def cases(backend, name):
    done = subprocess.run(
        [str(TRAIN_PYTHON), str(PROGRAM), backend, name],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
        },
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long(14)
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("backend", "name", "num_actions"), [("gloo", "1f1b", 12), ("gloo", "zbv", 24), ("smddp", "1f1b of two", 8)]
)
def test_a_rank_killed_at_any_action_ends_all_ranks_with_an_error_that_names_it(backend, name, num_actions):
    found = cases(backend, name)
    assert len(found) == len({case["killed_at"] for case in found}) == num_actions
    for case in found:
        killed = case["codes"].index(SIGKILLED)
        assert case["by_rank"][killed] is None
        for rank, told in enumerate(case["by_rank"]):
            if rank != killed:
                assert case["codes"][rank] == 0, case
                kind, words = told
                assert kind == "RankLost", case
                assert words.startswith(f"rank {rank} of pipeline {name.split()[0]} "), case
                assert _WHERE.search(words), case
                # The first rank to fail lost its connection to the killed rank; all others report that rank's message.
                first = words.split("the first to fail said: ")[-1]
                assert re.search(rf"(from|to|for) rank {killed}\b", first), case
                assert "Timed out" not in first, case
                assert "passed its limit" not in first, case
