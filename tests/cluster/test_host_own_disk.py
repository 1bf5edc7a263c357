"""Own disks of hosts in rehearsals: filled, freed, and removed with their agent. Needs root."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import clary
from clary.agent.host.mounts.own_disk import OwnDisk
from clary.base.errors import AgentError, EngineError, Fault
from clary.base.processes import ProcessId
from clary.contract.launch_plan import Resources
from clary.control.engines.local import attempt_record, disk_faults
from clary.testing.launch_plans import make_hosts, make_plan

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="disks of hosts' own: needs root"),
]

SIZE = 8 << 20
SOURCE = str(Path(clary.__file__).parent.parent)
# An agent reduced to its disk: it executes each line of its input and answers with a JSON value.
HOLDER = f"""
import json, os, sys
sys.path.insert(0, {SOURCE!r})
from pathlib import Path
from clary.agent.host.mounts import own_disk
host, with_disk = Path(sys.argv[1]), sys.argv[2] == "disk"
own_disk.enter_own_mounts()
ml = host / "ml"
disk = own_disk.OwnDisk(host, ml_folder=ml, size_bytes={SIZE}, outside=(ml / "input", ml / ".clary"))
if with_disk:
    disk.mount(available_bytes=None)
(host / "disk").mkdir(exist_ok=True)
(ml / "model").mkdir(parents=True)

def write(path, size):
    try:
        with open(path, "ab", buffering=0) as file:
            return file.write(bytes(size))
    except OSError as error:
        return f"errno {{error.errno}}"

def close():
    disk.close()
    disk.close()

def hold(path):
    Path(path).mkdir()
    disk.hold(Path(path))

print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""


class Holder:
    """The process that holds a host's disk."""

    def __init__(self, folder, *, with_disk=True):
        self.host = folder / "algo-1"
        self.host.mkdir(parents=True)
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(self.host), "disk" if with_disk else "none"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._begin(folder)
        except BaseException:
            self.end()
            raise

    def _begin(self, folder):
        assert self.process.stdout.readline() == "ready\n"
        self.plan = make_plan(
            hosts=tuple(replace(host, disk_bytes=SIZE) for host in make_hosts(1)),
            work_folder=str(folder),
            pool_folder=str(folder),
        )
        record = attempt_record.create_record(folder)
        attempt_record.write_record(folder, replace(record, agents={"algo-1": ProcessId.of(self.process.pid)}))

    def ask(self, expression):
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def write(self, path, size):
        return self.ask(f"write({str(self.host / path)!r}, {size})")

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def make_holder(tmp_path):
    holders = []

    def make(**options):
        holders.append(Holder(tmp_path / "1", **options))
        return holders[-1]

    yield make
    for holder in holders:
        holder.end()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


async def test_a_full_disk_refuses_writes_until_it_is_freed(make_holder):
    holder = make_holder()
    assert holder.write("ml/model/a", 1 << 20) == 1 << 20
    await disk_faults.fill(holder.plan, "algo-1")
    await disk_faults.fill(holder.plan, "algo-1")
    assert holder.write("ml/model/a", 1) == f"errno {errno.ENOSPC}"
    assert holder.write("ml/checkpoint", 1) == f"errno {errno.ENOSPC}"
    assert holder.write("ml/.clary/error", 10) == 10, "a program can still say why it failed"
    await disk_faults.free(holder.plan, "algo-1")
    assert holder.write("ml/model/a", 1 << 20) == 1 << 20


async def test_removing_a_file_from_a_full_disk_frees_exactly_its_size(make_holder):
    holder = make_holder()
    assert holder.write("ml/model/a", 1 << 20) == 1 << 20
    await disk_faults.fill(holder.plan, "algo-1")
    assert holder.ask(f"os.unlink({str(holder.host / 'ml/model/a')!r})") is None
    assert holder.write("ml/model/b", 2 << 20) == 1 << 20
    assert holder.write("ml/model/b", 1) == f"errno {errno.ENOSPC}"


async def test_an_empty_disk_can_be_filled(make_holder):
    holder = make_holder()
    await disk_faults.fill(holder.plan, "algo-1")
    assert holder.write("ml/model/a", 1) == f"errno {errno.ENOSPC}"


def test_writes_stop_at_the_disks_size_and_only_outside_folders_are_on_the_machine(make_holder):
    holder = make_holder()
    holder.write("ml/input/data.bin", 10 << 20)
    assert (holder.host / "ml/input/data.bin").stat().st_size == 10 << 20
    assert 0 < holder.write("ml/model/a", 2 * SIZE) < SIZE
    assert not (holder.host / "ml/model").exists()
    assert not (holder.host / "disk/ml").exists()


def test_other_folders_can_lie_on_the_disk_and_all_its_space_is_released(make_holder):
    holder = make_holder()
    checkpoints = holder.host / "checkpoints"
    assert holder.ask(f"hold({str(checkpoints)!r})") is None
    assert 0 < holder.write("checkpoints/a", 2 * SIZE) < SIZE
    assert list(checkpoints.iterdir()) == []
    assert holder.ask("close()") is None
    assert holder.ask(f"os.listdir({str(checkpoints)!r})") == []
    assert holder.ask(f"os.listdir({str(holder.host / 'disk')!r})") == []


async def test_the_disk_of_the_machine_is_never_filled(make_holder):
    holder = make_holder(with_disk=False)
    with pytest.raises(EngineError, match="is no disk of its own"):
        await disk_faults.fill(holder.plan, "algo-1")
    plain = replace(holder.plan, hosts=make_hosts(1))
    with pytest.raises(EngineError, match="the machine's is not filled"):
        await disk_faults.fill(plain, "algo-1")


async def test_a_hosts_disk_is_removed_when_its_agent_ends(make_holder):
    holder = make_holder()
    holder.end()
    with pytest.raises(EngineError, match="the agent of algo-1, which holds the host's disk, is gone"):
        await disk_faults.fill(holder.plan, "algo-1")
    assert sorted(path.name for path in (holder.host / "ml").iterdir()) == [".clary", "input"]


def test_a_disk_of_more_than_half_the_free_memory_is_refused(tmp_path):
    disk = OwnDisk(tmp_path / "algo-1", ml_folder=tmp_path / "algo-1/ml", size_bytes=SIZE, outside=())
    with pytest.raises(AgentError, match="algo-1: its own disk of 8 MiB would take more than half") as caught:
        disk.mount(available_bytes=2 * SIZE - 1)
    assert caught.value.fault is Fault.USER
    assert not (tmp_path / "algo-1").exists()


def test_the_disks_size_is_added_to_the_memory_limit(tmp_path):
    disk = OwnDisk(tmp_path, ml_folder=tmp_path / "ml", size_bytes=SIZE, outside=())
    assert disk.beside(Resources(num_cpus=1, memory_bytes=SIZE)).memory_bytes == 2 * SIZE
    assert disk.beside(Resources(num_cpus=1, memory_bytes=None)).memory_bytes is None
