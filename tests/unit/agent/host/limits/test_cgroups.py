"""Cgroups of both versions, on a tree of plain files that imitates the kernel's rules."""

import errno
import os
import shutil

import pytest

from clary.agent.host.limits import cgroups
from clary.agent.host.limits.cgroups import CgroupTree, HostCgroup, find_place
from clary.base.errors import AgentError
from clary.contract.launch_plan import Resources

GIB = 1024**3
FILES = {
    2: {
        "memory": ("memory.max", "memory.swap.max", "memory.events", "memory.peak"),
        "cpu": ("cpu.max", "cpu.weight"),
        "pids": ("pids.max",),
    },
    1: {
        "memory": (
            *("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
            *("memory.oom_control", "memory.max_usage_in_bytes"),
        ),
        "cpu": ("cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
        "pids": ("pids.max",),
    },
}


class FakeCgroupTree(CgroupTree):
    """A tree of plain files; as in the kernel, a new group gets the files of its parent's enabled controllers."""

    def __init__(self, root, *, version, own="/system.slice/clary.service", busy=(), forbidden=()):
        """Make a tree; `busy` names groups with processes, which enable no controllers for children in version 2."""
        self.root, self.version, self.own = root, version, own
        self.pid_max = 4_194_304
        self.members = {}  # pid -> group, in tests that let processes move
        self.forbidden = set(forbidden)  # control files that cannot be written, by name or by path
        if version == 2:
            self._populate(root, ("memory", "cpu", "pids"), is_top=True)
            folder = root
            for name in own.strip("/").split("/") if own != "/" else ():
                (folder / "cgroup.subtree_control").write_text("memory cpu pids")
                folder = folder / name
                self.make(str(folder))
            for name in busy:
                (root / name / "cgroup.procs").write_text("77\n")
        else:
            for controller in FILES[1]:
                (root / controller).mkdir()
                folder = root / controller / own.strip("/")
                folder.mkdir(parents=True, exist_ok=True)

    def most_processes(self):
        return self.pid_max

    def mountinfo(self):
        if self.version == 2:
            return f"30 23 0:26 / {self.root} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
        return "".join(
            f"3{number} 23 0:2{number} / {self.root}/{name} rw - cgroup cgroup rw,{name}\n"
            for number, name in enumerate(FILES[1])
        )

    def membership(self):
        if self.version == 2:
            return f"0::{self.own}\n"
        return "".join(f"{number}:{name}:{self.own}\n" for number, name in enumerate(FILES[1]))

    def make(self, folder):
        if os.path.isdir(folder):
            return
        os.mkdir(folder)
        if self.version == 2:
            with open(f"{os.path.dirname(folder)}/cgroup.subtree_control") as file:
                self._populate(folder, file.read().replace("+", "").split())
        else:
            controller = os.path.relpath(folder, self.root).split("/")[0]
            self._populate(folder, (controller,))

    def remove(self, folder):
        if any(os.path.isdir(f"{folder}/{name}") for name in os.listdir(folder)) or self.read(f"{folder}/cgroup.procs"):
            raise OSError(errno.EBUSY, "Device or resource busy")
        shutil.rmtree(folder)

    def write(self, path, value):
        name = os.path.basename(path)
        if name in self.forbidden or os.path.relpath(path, self.root) in self.forbidden:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        if name == "cgroup.subtree_control":
            folder = os.path.dirname(path)
            # cpu and pids alone would be accepted, and would not suffice
            if "memory" in value and self.read(f"{folder}/cgroup.procs"):
                raise OSError(errno.EBUSY, "Device or resource busy", path)
            value = f"{self.read(path)} {value.removeprefix('+')}".strip()
            with open(path, "w") as file:
                file.write(value)
            # Control files appear in the child groups that exist already.
            for name in os.listdir(folder):
                if os.path.isdir(f"{folder}/{name}"):
                    self._populate(f"{folder}/{name}", value.split()[-1:])
            return
        if name == "cgroup.procs" and self.members:
            self.move(int(value), os.path.dirname(path))
            return
        os.truncate(path, 0)  # a write replaces the content of a control file
        super().write(path, value)

    def move(self, pid, folder):
        """Move a process to a group; a process is in one group at a time."""
        self.members[pid] = str(folder)
        for group in {folder, *self.root.rglob("cgroup.procs")}:
            group = os.path.dirname(group) if os.path.basename(group) == "cgroup.procs" else group
            pids = [str(pid) for pid, place in self.members.items() if place == str(group)]
            with open(f"{group}/cgroup.procs", "w") as file:
                file.write("\n".join(pids))

    def _populate(self, folder, controllers, *, is_top=False):
        names = ["cgroup.procs", *(["cgroup.subtree_control"] if self.version == 2 else [])]
        if self.version == 2 and not is_top:
            names.append("cgroup.type")
        if not is_top:
            names += [name for controller in controllers for name in FILES[self.version][controller]]
        for name in names:
            if os.path.exists(f"{folder}/{name}"):
                continue
            with open(f"{folder}/{name}", "w") as file:
                file.write("max" if name in ("memory.max", "cpu.max", "pids.max") else "")


@pytest.fixture(autouse=True)
def _eight_processors(monkeypatch):
    monkeypatch.setattr(cgroups.os, "cpu_count", lambda: 8)


def test_version_2_limits_memory_processors_and_processes(tmp_path):
    tree = FakeCgroupTree(tmp_path, version=2)
    cgroup = HostCgroup.create("job-1-algo-1", Resources(num_cpus=2, memory_bytes=4 * GIB), tree=tree)
    folder = tmp_path / "system.slice" / "clary.service" / "clary" / "job-1-algo-1"
    assert cgroup.not_enforced == ()
    assert cgroup.entry_files == (f"{folder}/cgroup.procs",)
    assert cgroup.visible_folders == {"": str(folder)}
    written = {name: (folder / name).read_text() for name in FILES[2]["memory"][:2] + FILES[2]["cpu"] + ("pids.max",)}
    assert written == {
        "memory.max": str(4 * GIB),
        "memory.swap.max": "0",
        "cpu.max": "200000 100000",
        "cpu.weight": "200",
        "pids.max": "32768",
    }


def test_version_1_limits_memory_processors_and_processes(tmp_path):
    tree = FakeCgroupTree(tmp_path, version=1, own="/box")
    cgroup = HostCgroup.create("job-1-algo-1", Resources(num_cpus=0.5, memory_bytes=GIB), tree=tree)
    assert cgroup.not_enforced == ()
    assert len(cgroup.entry_files) == 3
    memory, cpu = (tmp_path / name / "box" / "clary" / "job-1-algo-1" for name in ("memory", "cpu"))
    assert (memory / "memory.limit_in_bytes").read_text() == str(GIB)
    assert (memory / "memory.memsw.limit_in_bytes").read_text() == str(GIB)
    assert (cpu / "cpu.cfs_quota_us").read_text() == "50000"
    assert (cpu / "cpu.shares").read_text() == "512"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("pid_max", "above", "of_one", "of_all"),
    [
        (32_768, "max", 8192, 24_576),  # the default of kernels with up to 32 processors
        (4_194_304, "4915", 1228, 3686),  # a unit of systemd
        (4_194_304, "max", 32_768, 3_145_728),
        (600, "max", 256, 450),
    ],
)
def test_hosts_never_take_the_machines_last_processes(tmp_path, version, pid_max, above, of_one, of_all):
    tree = FakeCgroupTree(tmp_path, version=version)
    tree.pid_max = pid_max
    place = find_place("pids", mountinfo=tree.mountinfo(), membership=tree.membership())
    with open(f"{place.own}/pids.max", "w") as file:
        file.write(above)
    cgroup = HostCgroup.create("one", Resources(num_cpus=1, memory_bytes=None), tree=tree)
    folder = next(folder for folder in cgroup.folders if os.path.exists(f"{folder}/pids.max"))
    assert (tree.read(f"{folder}/pids.max"), tree.read(f"{os.path.dirname(folder)}/pids.max")) == (
        str(of_one),
        str(of_all),
    )


@pytest.mark.parametrize(("version", "file", "per_cpu"), [(1, "cpu.shares", 1024), (2, "cpu.weight", 100)])
def test_the_weight_of_the_family_is_the_sum_of_its_hosts_weights(tmp_path, version, file, per_cpu):
    tree = FakeCgroupTree(tmp_path, version=version)
    hosts = [
        HostCgroup.create(name, Resources(num_cpus=num_cpus, memory_bytes=None), tree=tree)
        for name, num_cpus in (("one", 2), ("two", 0.5), ("three", 8))
    ]
    folder = next(folder for folder in hosts[0].folders if os.path.exists(f"{folder}/{file}"))
    family = os.path.dirname(folder)
    assert tree.read(f"{family}/{file}") == str(round(10.5 * per_cpu))
    hosts[2].remove()
    assert tree.read(f"{family}/{file}") == str(round(2.5 * per_cpu))
    large = HostCgroup.create("large", Resources(num_cpus=4096, memory_bytes=None), tree=tree)
    assert tree.read(f"{family}/{file}") == {1: "262144", 2: "10000"}[version]
    for host in (*hosts[:2], large):
        assert host.remove() is None
    assert not os.path.exists(family)


@pytest.mark.parametrize(("version", "file", "per_cpu"), [(1, "cpu.shares", 1024), (2, "cpu.weight", 100)])
def test_a_host_that_yields_processors_has_a_tenth_of_its_weight_until_it_claims_them(tmp_path, version, file, per_cpu):
    tree = FakeCgroupTree(tmp_path, version=version)
    hosts = [HostCgroup.create(name, Resources(num_cpus=2, memory_bytes=None), tree=tree) for name in ("one", "two")]
    folder = next(folder for folder in hosts[0].folders if os.path.exists(f"{folder}/{file}"))
    family = os.path.dirname(folder)
    for _ in range(2):
        hosts[0].yield_processors()
        assert tree.read(f"{folder}/{file}") == str(round(0.2 * per_cpu))
        assert tree.read(f"{family}/{file}") == str(round(0.2 * per_cpu) + 2 * per_cpu)
    for _ in range(2):
        hosts[0].claim_processors()
        assert tree.read(f"{folder}/{file}") == str(2 * per_cpu)
        assert tree.read(f"{family}/{file}") == str(4 * per_cpu)


def test_a_host_whose_weight_cannot_be_written_keeps_it(tmp_path):
    tree = FakeCgroupTree(tmp_path, version=1)
    host = HostCgroup.create("h", Resources(num_cpus=8, memory_bytes=None), tree=tree)
    tree.forbidden.add("cpu.shares")
    with pytest.raises(OSError):
        host.yield_processors()
    host.claim_processors()


def test_a_host_without_cgroups_yields_nothing(tmp_path):
    host = HostCgroup(FakeCgroupTree(tmp_path, version=1))
    host.yield_processors()
    host.claim_processors()


def test_a_family_whose_weight_cannot_be_written_is_no_error(tmp_path):
    tree = FakeCgroupTree(tmp_path, version=1)
    HostCgroup.create("first", Resources(num_cpus=1, memory_bytes=None), tree=tree)
    tree.forbidden.add("cpu.shares")
    assert HostCgroup.create("h", Resources(num_cpus=8, memory_bytes=None), tree=tree).not_enforced == ()


def test_quota_is_left_out_where_the_host_may_use_the_whole_machine(tmp_path):
    tree = FakeCgroupTree(tmp_path, version=2)
    cgroup = HostCgroup.create("h", Resources(num_cpus=8, memory_bytes=None), tree=tree)
    folder = os.path.dirname(cgroup.entry_files[0])
    assert tree.read(f"{folder}/cpu.max") == "max"
    assert tree.read(f"{folder}/memory.max") == "max"


def test_version_2_makes_the_family_above_a_group_that_holds_processes(tmp_path):
    tree = FakeCgroupTree(tmp_path, version=2, busy=["system.slice/clary.service"])
    cgroup = HostCgroup.create("h", Resources(num_cpus=1, memory_bytes=GIB), tree=tree)
    assert cgroup.not_enforced == ()
    assert cgroup.entry_files == (f"{tmp_path}/system.slice/clary/h/cgroup.procs",)
    assert cgroup.home_files == (f"{tmp_path}/system.slice/clary.service/cgroup.procs",)


def test_version_2_never_leaves_a_limit_that_was_set_for_the_agent(tmp_path):
    tree = FakeCgroupTree(tmp_path, version=2, busy=["system.slice/clary.service"])
    (tmp_path / "system.slice" / "clary.service" / "memory.max").write_text(str(GIB))
    cgroup = HostCgroup.create("h", Resources(num_cpus=1, memory_bytes=4 * GIB), tree=tree)
    assert cgroup.entry_files == ()
    assert [sentence.split(":")[0] for sentence in cgroup.not_enforced] == [
        "Memory is not limited to 4.0 GiB by the kernel",
        "Processor time is not limited to 1 CPUs",
    ]
    assert "it holds processes" in cgroup.not_enforced[0]


class FakeDelegatedTree(FakeCgroupTree):
    """A group that belongs to the user and holds the service and a shell; the user may not write anything above it."""

    def __init__(self, root, **options):
        forbidden = ["user/cgroup.subtree_control", "user/cgroup.procs"]
        super().__init__(root, version=2, own="/user/alice", forbidden=forbidden, **options)
        for pid in (41, 42):
            self.move(pid, root / "user" / "alice")

    def make(self, folder):
        if not os.path.isdir(folder) and os.path.dirname(folder) in (f"{self.root}", f"{self.root}/user"):
            if not self.members:
                return super().make(folder)  # made by root before the user's processes exist
            raise PermissionError(errno.EACCES, "Permission denied", folder)
        return super().make(folder)

    def membership(self):
        return f"0::/{os.path.relpath(self.members[42], self.root)}\n"


def test_a_delegated_group_enables_limits_after_its_processes_moved_to_a_leaf(tmp_path):
    tree = FakeDelegatedTree(tmp_path)
    own = tmp_path / "user" / "alice"
    for name in ("first", "second"):
        cgroup = HostCgroup.create(name, Resources(num_cpus=2, memory_bytes=GIB), tree=tree)
        assert (cgroup.not_enforced, cgroup.limits_memory) == ((), True)
        assert cgroup.entry_files == (f"{own}/clary/{name}/cgroup.procs",)
        assert cgroup.home_files == (f"{own}/clary-service/cgroup.procs",)
        assert tree.read(f"{own}/clary/{name}/memory.max") == str(GIB)
    assert set(tree.members.values()) == {f"{own}/clary-service"}


def test_a_probe_without_may_move_moves_no_process(tmp_path):
    tree = FakeDelegatedTree(tmp_path)
    cgroup = HostCgroup.create("h", Resources(num_cpus=2, memory_bytes=GIB), tree=tree, may_move=False)
    assert not cgroup.limits_memory
    assert set(tree.members.values()) == {f"{tmp_path}/user/alice"}
    assert not (tmp_path / "user" / "alice" / "clary-service").exists()


def test_group_whose_processes_may_not_be_moved_stays_as_it_was(tmp_path):
    tree = FakeDelegatedTree(tmp_path)
    tree.forbidden.add("user/alice/clary-service/cgroup.procs")
    cgroup = HostCgroup.create("h", Resources(num_cpus=2, memory_bytes=GIB), tree=tree)
    assert not cgroup.limits_memory
    assert "The agent watches the host's processes instead" in cgroup.not_enforced[0]
    assert not (tmp_path / "user" / "alice" / "clary-service").exists()


@pytest.mark.parametrize(("version", "file"), [(1, "memory.limit_in_bytes"), (2, "memory.max")])
def test_a_limit_that_cannot_be_written_is_reported(tmp_path, version, file):
    tree = FakeCgroupTree(tmp_path, version=version, forbidden=[file])
    cgroup = HostCgroup.create("h", Resources(num_cpus=8, memory_bytes=GIB), tree=tree)
    (sentence,) = cgroup.not_enforced
    assert sentence.startswith("Memory is not limited to 1.0 GiB by the kernel: Permission denied")
    assert file in sentence


@pytest.mark.parametrize(("version", "file"), [(1, "memory.memsw.limit_in_bytes"), (2, "memory.swap.max")])
def test_kernels_without_swap_accounting_limit_memory(tmp_path, version, file):
    tree = FakeCgroupTree(tmp_path, version=version, forbidden=[file])
    assert HostCgroup.create("h", Resources(num_cpus=8, memory_bytes=GIB), tree=tree).not_enforced == ()


def test_limits_that_were_not_requested_are_not_reported(tmp_path):
    tree = FakeCgroupTree(tmp_path, version=2)
    shutil.rmtree(tmp_path)
    assert HostCgroup.create("h", Resources(num_cpus=8, memory_bytes=None), tree=tree).not_enforced == ()


@pytest.mark.parametrize(
    ("version", "events", "text", "peak"),
    [
        (2, "memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n", "memory.peak"),
        (1, "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", "memory.max_usage_in_bytes"),
    ],
)
def test_kills_and_peak_are_read(tmp_path, version, events, text, peak):
    tree = FakeCgroupTree(tmp_path, version=version)
    cgroup = HostCgroup.create("h", Resources(num_cpus=8, memory_bytes=GIB), tree=tree)
    folder = next(folder for folder in cgroup.folders if os.path.exists(f"{folder}/{events}"))
    assert (cgroup.oom_kills(), cgroup.peak_memory_bytes()) == (0, None)
    tree.write(f"{folder}/{events}", text)
    tree.write(f"{folder}/{peak}", "123456\n")
    assert (cgroup.oom_kills(), cgroup.peak_memory_bytes()) == (2, 123456)


@pytest.mark.parametrize("version", [1, 2])
def test_remove_takes_everything_with_the_last_host(tmp_path, version):
    tree = FakeCgroupTree(tmp_path, version=version)
    first = HostCgroup.create("one", Resources(num_cpus=1, memory_bytes=GIB), tree=tree)
    second = HostCgroup.create("two", Resources(num_cpus=1, memory_bytes=GIB), tree=tree)
    assert first.remove() is None
    assert all(os.path.isdir(folder) for folder in second.folders)
    assert second.remove() is None
    assert [path for path in tmp_path.rglob("*") if path.name in ("clary", "one", "two")] == []


def test_remove_gives_up_on_a_group_that_stays_busy(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "_REMOVE_LIMIT_S", 0.02)
    tree = FakeCgroupTree(tmp_path, version=2)
    cgroup = HostCgroup.create("h", Resources(num_cpus=1, memory_bytes=GIB), tree=tree)
    tree.write(cgroup.entry_files[0], "77\n")
    assert cgroup.pids() == (77,)
    assert "could not be removed: Device or resource busy" in cgroup.remove()


class FakeTreeWithRivals(FakeCgroupTree):
    """A tree in which another process removes the family's folder after it was made, `times` times."""

    def __init__(self, root, *, version, error_number, times):
        super().__init__(root, version=version)
        self.error_number = error_number
        self.times_left = times

    def make(self, folder):
        if os.path.basename(os.path.dirname(folder)) == "clary" and self.times_left:
            self.times_left -= 1
            shutil.rmtree(os.path.dirname(folder))
            raise OSError(self.error_number, os.strerror(self.error_number), folder)
        super().make(folder)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("error_number", [errno.ENOENT, errno.ENODEV])
def test_a_family_that_another_process_removes_is_made_again(tmp_path, version, error_number):
    tree = FakeTreeWithRivals(tmp_path, version=version, error_number=error_number, times=4)
    cgroup = HostCgroup.create("h", Resources(num_cpus=1, memory_bytes=GIB), tree=tree)
    assert tree.times_left == 0
    assert cgroup.not_enforced == ()
    assert all(os.path.isdir(folder) for folder in cgroup.folders)


def test_a_family_that_is_always_removed_is_reported_after_a_few_tries(tmp_path):
    tree = FakeTreeWithRivals(tmp_path, version=2, error_number=errno.ENODEV, times=10_000)
    cgroup = HostCgroup.create("h", Resources(num_cpus=1, memory_bytes=GIB), tree=tree)
    assert "Memory is not limited to 1.0 GiB by the kernel: No such device" in cgroup.not_enforced[0]


def test_group_that_holds_processes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "_TAKE_OVER_LIMIT_S", 0.02)
    tree = FakeCgroupTree(tmp_path, version=2)
    cgroup = HostCgroup.create("h", Resources(num_cpus=1, memory_bytes=GIB), tree=tree)
    tree.write(cgroup.entry_files[0], "77\n")
    with pytest.raises(AgentError, match="holds processes already"):
        HostCgroup.create("h", Resources(num_cpus=1, memory_bytes=GIB), tree=tree)


@pytest.mark.parametrize("controller", ["cpu", "pids"])
def test_a_group_that_is_refused_in_one_hierarchy_leaves_none_in_the_others(tmp_path, monkeypatch, controller):
    monkeypatch.setattr(cgroups, "_TAKE_OVER_LIMIT_S", 0.02)
    tree = FakeCgroupTree(tmp_path, version=1, own="/box")
    busy = tmp_path / controller / "box" / "clary" / "h"
    tree.make(str(busy.parent))
    tree.make(str(busy))
    (busy / "cgroup.procs").write_text("77\n")
    with pytest.raises(AgentError, match="holds processes already"):
        HostCgroup.create("h", Resources(num_cpus=1, memory_bytes=GIB), tree=tree)
    assert list(tmp_path.rglob("h")) == [busy]
    assert tree.read(f"{busy}/cgroup.procs") == "77\n"


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "a b", "a\n"])
def test_names_that_are_no_folder_names_are_refused(name, tmp_path):
    with pytest.raises(AgentError, match="cgroup name"):
        HostCgroup.create(name, Resources(num_cpus=1, memory_bytes=None), tree=FakeCgroupTree(tmp_path, version=2))


@pytest.mark.parametrize(
    ("mountinfo", "membership", "own"),
    [
        ("1 0 0:1 / /cg/memory rw - cgroup cgroup rw,memory\n", "4:memory:/a/b\n", "/cg/memory/a/b"),
        ("1 0 0:1 / /cg/memory rw - cgroup cgroup rw,memory\n", "4:memory:/\n", "/cg/memory"),
        ("1 0 0:1 /docker/x /cg/memory rw - cgroup cgroup rw,memory\n", "4:memory:/docker/x/y\n", "/cg/memory/y"),
        ("1 0 0:1 /docker/x /cg/memory rw - cgroup cgroup rw,memory\n", "4:memory:/docker/x\n", "/cg/memory"),
        ("1 0 0:1 / /cg rw shared:4 - cgroup2 cgroup2 rw\n", "0::/../../up\n", "/cg"),
        ("1 0 0:1 / /cg/both rw - cgroup cgroup rw,cpu,memory\n", "4:cpu,memory:/a:b\n", "/cg/both/a:b"),
        (
            "1 0 0:1 / /cg/unified rw - cgroup2 cgroup2 rw\n2 0 0:2 / /cg/memory rw - cgroup cgroup rw,memory\n",
            "4:memory:/v1\n0::/v2\n",
            "/cg/memory/v1",
        ),
    ],
)
def test_own_group_is_found(mountinfo, membership, own):
    assert find_place("memory", mountinfo=mountinfo, membership=membership).own == own


def test_a_machine_without_cgroups_is_reported_by_controller():
    with pytest.raises(FileNotFoundError, match="'memory'"):
        find_place("memory", mountinfo="1 0 0:1 / / rw - ext4 /dev/vda rw\n", membership="")
