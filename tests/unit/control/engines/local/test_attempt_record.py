"""Records of pools and attempts: the pool that an attempt names, and the recorded processes that are alive."""

import errno
import json
import os
from dataclasses import replace

import pytest

from clary.base.errors import EngineError
from clary.base.processes import ProcessId
from clary.control.engines.local import attempt_record
from clary.control.engines.local.attempt_record import AttemptRecord, living_agents, living_anchor, pool_folder

OURS = ProcessId.of(os.getpid())
GONE = ProcessId(os.getpid(), "1")  # a pid that another process has reused


@pytest.fixture
def pool(tmp_path):
    folder = tmp_path / "jobs/pool_0/1"
    folder.mkdir(parents=True)
    return folder


def test_an_attempt_names_its_pool_and_a_pool_or_an_unknown_folder_names_none(pool, tmp_path):
    place = tmp_path / "jobs/job/2"
    place.mkdir(parents=True)
    assert pool_folder(place) is None
    attempt_record.create_record(place, pool="pool_0", master_port=7, cgroup_places=("/a",))
    attempt_record.create_record(pool)
    assert pool_folder(place) == pool
    assert pool_folder(pool) is None
    again = attempt_record.create_record(place, pool="pool_1", master_port=8)
    assert (again.pool, again.master_port, again.cgroup_places) == ("pool_0", 7, ("/a",)), "what is written stays"


def test_only_living_agents_of_this_boot_are_found(pool):
    assert living_agents(pool) == {}
    record = replace(attempt_record.create_record(pool), agents={"algo-1": OURS, "algo-2": GONE})
    attempt_record.write_record(pool, record)
    assert living_agents(pool) == {"algo-1": OURS}
    attempt_record.write_record(pool, AttemptRecord(boot_id="an earlier one", mark="", agents={"algo-1": OURS}))
    assert living_agents(pool) == {}
    (pool / attempt_record.RECORD_FILE).write_text("{")
    with pytest.raises(EngineError, match="cannot be read"):
        living_agents(pool)


@pytest.mark.parametrize(("process", "found"), [(OURS, OURS), (GONE, None)])
def test_only_a_living_anchor_is_found(pool, process, found):
    assert living_anchor(pool) is None
    ready = {"pid": process.pid, "started": process.started, "error": None}
    (pool / "network-ready.json").write_text(json.dumps(ready))
    assert living_anchor(pool) == found


def test_living_agents_are_not_taken_for_those_of_an_earlier_boot_if_its_id_cannot_be_read(pool, monkeypatch):
    record = replace(attempt_record.create_record(pool), agents={"algo-1": OURS})
    attempt_record.write_record(pool, record)

    def refuse():
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(attempt_record.clock, "boot_id", refuse)
        for ask in (living_agents, attempt_record.create_record):
            with pytest.raises(EngineError, match="boot cannot be read now"):
                ask(pool)
    assert living_agents(pool) == {"algo-1": OURS}
