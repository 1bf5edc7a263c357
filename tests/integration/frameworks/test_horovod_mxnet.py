"""Horovod for MXNet on two ranks: every operation, and trainings with the same results as one process."""

import json
import os
import socket
import subprocess
import time

import pytest
from framework_jobs import PROGRAMS, digits_file
from running_service import ROOT

from needs import python_of

pytestmark = [
    pytest.mark.needs("mxnet"),
    pytest.mark.needs("sdk2"),
    pytest.mark.timeout(200),
    pytest.mark.xdist_group("horovod-mxnet"),
]

WAYS = ("trainer", "optimizer", "groups", "predivided", "fp16")
LIMIT_S = 120


def run_ranks(folder, size, *options):
    """Run the program on `size` ranks; return exit codes and outputs by rank."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    shared = {
        **os.environ,
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": f"{ROOT / 'src/clary/compat'}:{ROOT / 'src'}",
        "OMP_NUM_THREADS": "1",
    }
    command = [str(python_of("mxnet")), "-W", "ignore", str(PROGRAMS / "horovod_mxnet_program.py")]
    command += [str(digits_file().parent), str(folder), *options]
    logs = [folder / f"log-{rank}" for rank in range(size)]
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("wb") as file:
            variables = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(subprocess.Popen(command, env=variables, stdout=file, stderr=subprocess.STDOUT))
    deadline_s = time.monotonic() + LIMIT_S
    try:
        codes = [process.wait(max(deadline_s - time.monotonic(), 0.1)) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return codes, [log.read_text() for log in logs]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return number of ranks -> results of each rank."""
    by_size = {}
    for size in (1, 2):
        folder = tmp_path_factory.mktemp(f"ranks-{size}")
        codes, logs = run_ranks(folder, size)
        assert codes == [0] * size, "\n".join(logs)[-4000:]
        by_size[size] = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(size)]
    return by_size


@pytest.mark.long(60)
@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_train_like_one_process(found, way):
    (alone,), ranks = found[1], found[2]
    assert [facts["size"] for facts in ranks] == [2, 2]
    for facts in ranks:
        assert facts[way] == ranks[0][way], "ranks differ"
        assert facts[way]["losses"] == pytest.approx(alone[way]["losses"], rel=2e-2 if way == "fp16" else 1e-4)
    assert ranks[0][way]["losses"][-1] < 0.5 * ranks[0][way]["losses"][0]


def test_a_dead_rank_fails_the_operation_of_the_other_at_once(tmp_path):
    begun_s = time.monotonic()
    codes, logs = run_ranks(tmp_path, 2, "--dies")
    assert codes == [1, -9]
    assert "HorovodInternalError" in logs[0]
    assert "rank 1" in logs[0].splitlines()[-1]
    assert time.monotonic() - begun_s < LIMIT_S / 2
