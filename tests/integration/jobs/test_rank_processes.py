"""Ranks as processes: groups over the TCP store, and peers that are killed or stopped."""

import os
import signal

import pytest
from collective_groups import CORES, RankProcesses, held_ports

pytestmark = pytest.mark.parametrize("core", CORES)
PROGRAM = "collective_programs.py"
TIMEOUT_S = 2.0


@pytest.fixture
def port():
    with held_ports() as first:
        yield first


def start(scenario, size, *, core, port, hosts=(), **variables):
    environment = {
        "CLARY_COLLECTIVE_CORE": core,
        "CLARY_COLLECTIVE_TIMEOUT_S": str(TIMEOUT_S),
        "CLARY_COLLECTIVE_CONNECT_TIMEOUT_S": "20",
        **variables,
    }
    return RankProcesses(PROGRAM, scenario, size, port=port, environment=environment, hosts=hosts)


@pytest.mark.long(10)
@pytest.mark.parametrize("hosts", [("a", "a", "a", "a"), ("a", "a", "b", "b"), ("a", "b", "c", "d")])
def test_four_processes_reduce(core, port, hosts):
    with start("reduce", 4, core=core, port=port, hosts=hosts, CLARY_COLLECTIVE_SECRET="of the job") as ranks:
        assert ranks.results() == [{"total": 10, "whole": True, "mates": 2}] * 4


@pytest.mark.parametrize("hosts", [("a", "a", "a"), ("a", "a", "b"), ("a", "b", "b")])
def test_a_killed_rank_is_named_by_all_others_at_once(core, port, hosts):
    with start("wait_for_end", 3, core=core, port=port, hosts=hosts) as ranks:
        pids = [ranks.read_line(rank)["pid"] for rank in range(3)]
        os.kill(pids[2], signal.SIGKILL)
        for rank in (0, 1):
            end = ranks.read_line(rank)
            assert (end["error"], end["culprit"]) == ("PeerLost", 2), end
            assert "rank 2" in end["words"]
            assert end["noticed_s"] < TIMEOUT_S / 2


@pytest.mark.parametrize("hosts", [("a", "a", "a"), ("a", "a", "b")])
@pytest.mark.long
def test_a_stopped_rank_is_named_at_the_timeout(core, port, hosts):
    with start("wait_for_end", 3, core=core, port=port, hosts=hosts) as ranks:
        pids = [ranks.read_line(rank)["pid"] for rank in range(3)]
        os.kill(pids[2], signal.SIGSTOP)
        for rank in (0, 1):
            end = ranks.read_line(rank)
            assert (end["error"], end["culprit"]) == ("CollectiveTimeout", 2), end
            assert TIMEOUT_S / 2 < end["noticed_s"] < TIMEOUT_S * 3


def test_a_rank_that_dies_while_idle_fails_the_next_operation(core, port):
    with start("idle", 2, core=core, port=port) as ranks:
        pids = [ranks.read_line(rank)["pid"] for rank in range(2)]
        os.kill(pids[1], signal.SIGKILL)
        ranks.processes[1].wait(10)
        ranks.processes[0].stdin.write("go\n")
        ranks.processes[0].stdin.flush()
        end = ranks.read_line(0)
        assert (end["error"], end["culprit"]) == ("PeerLost", 1), end
