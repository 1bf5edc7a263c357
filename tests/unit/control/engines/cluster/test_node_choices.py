"""The kind of node for an instance type, the address of a host, and the files in the bundle."""

import io
import py_compile
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest

from clary.contract.enrolment import Address, NodeReport
from clary.contract.launch_plan import Isolation
from clary.control.engines.cluster.bundle import boot_script, make_bundle
from clary.control.engines.cluster.node_kinds import choose_kind, choose_known, why_unsure
from clary.control.engines.cluster.node_networks import choose_addresses, joined
from clary.control.engines.cluster.scheduler import NodeKind
from clary.control.scheduling.catalogue import GIB, InstanceShape
from clary.testing.launch_plans import make_hosts, make_plan


def kind(name, cpus, gib, gpus=0, *, nodes=4, types=()):
    return NodeKind(
        name=name,
        num_cpus=cpus,
        memory_bytes=gib * GIB,
        num_gpus=gpus,
        num_nodes=nodes,
        num_free=nodes,
        maps_to=f"partition {name}",
        instance_types=types,
    )


SMALL, LARGE, GPU = kind("small", 8, 32), kind("large", 64, 512), kind("gpu", 96, 1024, 8, nodes=2)


def shape(cpus, gib, gpus=0, name="ml.x"):
    return InstanceShape(name=name, num_cpus=cpus, memory_bytes=gib * GIB, num_gpus=gpus)


@pytest.mark.parametrize(
    ("wanted", "num_hosts", "chosen"),
    [
        (shape(4, 16), 1, "small"),
        (shape(8, 32), 4, "small"),
        (shape(16, 64), 1, "large"),
        (shape(8, 61, 1), 2, "gpu"),
        (shape(192, 2048, 8), 1, "gpu"),  # no kind has all resources: the largest kind with GPUs
        (shape(192, 2048), 1, "large"),  # and the largest kind without GPUs
        (shape(8, 61, 1), 3, "large"),  # too few nodes have GPUs
    ],
)
def test_the_smallest_sufficient_kind_serves_a_type_or_else_the_largest(wanted, num_hosts, chosen):
    assert choose_kind(wanted, [GPU, SMALL, LARGE], num_hosts=num_hosts).kind.name == chosen


def test_settings_take_precedence_over_shapes_and_the_reason_names_them():
    named = kind("odd", 2, 4, types=("ml.x",))
    found = choose_kind(shape(64, 512), [LARGE, named], num_hosts=1)
    assert (found.kind, found.reason) == (named, "ml.x is served by partition odd, as settings say")


def test_nodes_that_settings_give_to_other_types_are_used_only_if_there_are_no_others():
    reserved = kind("reserved", 64, 512, types=("ml.other",))
    assert choose_kind(shape(64, 512), [reserved, SMALL], num_hosts=1).kind == SMALL
    assert choose_kind(shape(64, 512), [reserved], num_hosts=1).kind == reserved
    refused = choose_kind(shape(64, 512), [reserved, SMALL], num_hosts=5)
    assert (refused.kind, refused.reason) == (None, "5 nodes are needed for ml.x; there are 4")


def test_a_smaller_node_gets_a_note_and_too_many_hosts_are_refused():
    assert "ml.x has 128 CPUs" in choose_kind(shape(128, 64), [SMALL], num_hosts=1).reason
    found = choose_kind(shape(1, 1), [SMALL, GPU], num_hosts=9)
    assert found.kind is None
    assert found.reason == "9 nodes are needed for ml.x; there are 6"


def test_kinds_serve_together_where_none_has_enough_nodes():
    found = choose_kind(shape(4, 16), [SMALL, GPU], num_hosts=6).kind
    assert (found.name, found.num_cpus, found.num_gpus, found.num_nodes) == ("", 8, 0, 6)
    with_gpus = choose_kind(shape(4, 16, 1), [kind("a", 8, 32, 1, nodes=1), kind("b", 16, 64, 2, nodes=1)], num_hosts=2)
    assert with_gpus.kind.num_gpus == 1


def test_a_node_of_several_kinds_is_counted_once_for_a_job_of_several_kinds():
    names = ("a", "b", "c", "d")
    kinds = [replace(SMALL, nodes=names), replace(SMALL, name="twin", nodes=names)]
    found = choose_kind(shape(1, 1), kinds, num_hosts=5)
    assert (found.kind, found.reason) == (None, "5 nodes are needed for ml.x; there are 4")


def report(*addresses, used="", **changes):
    facts = {"num_cpus": 8, "memory_bytes": 32 * GIB, "isolation": "namespaces", "free_port": 7777}
    return NodeReport(node="n", addresses=addresses, used_address=used or addresses[0].address, **facts | changes)


def at(address, *, bits=24, interface="eth0", speed=1000):
    return Address(interface=interface, address=address, prefix_length=bits, speed_mbit_s=speed)


def test_the_fastest_subnet_that_all_nodes_share_is_used():
    reports = {
        0: report(at("10.0.0.1"), at("192.168.9.1", interface="ib0", speed=100_000), at("172.17.0.1", bits=16)),
        1: report(at("10.0.0.2"), at("192.168.9.2", interface="ib1", speed=100_000)),
    }
    assert {index: own.address for index, own in choose_addresses(reports).items()} == {
        0: "192.168.9.1",
        1: "192.168.9.2",
    }


def test_without_a_common_subnet_the_address_towards_the_service_is_used():
    reports = {
        0: report(at("10.0.0.1"), at("10.1.0.1"), used="10.1.0.1"),
        1: report(at("10.2.0.2"), used="10.2.0.2"),
    }
    assert [own.address for own in choose_addresses(reports).values()] == ["10.1.0.1", "10.2.0.2"]


def test_of_equally_fast_links_the_one_towards_the_service_is_used():
    reports = {
        0: report(at("10.1.0.1"), at("10.0.0.1"), used="10.0.0.1"),
        1: report(at("10.1.0.2"), at("10.0.0.2"), used="10.0.0.2"),
    }
    assert choose_addresses(reports)[1].address == "10.0.0.2"


def test_invalid_addresses_and_bridges_of_one_host_are_skipped():
    reports = {0: report(at("nonsense"), at("10.9.9.9", bits=32), at("10.0.0.1"), used="10.0.0.1")}
    assert choose_addresses(reports)[0].address == "10.0.0.1"


def test_a_plan_gets_addresses_port_and_the_least_isolation_of_its_nodes():
    reports = {0: report(at("10.0.0.1"), free_port=40001), 1: report(at("10.0.0.2"), isolation="processes")}
    plan = joined(make_plan(hosts=make_hosts(2)), reports)
    assert [host.address for host in plan.hosts] == ["10.0.0.1", "10.0.0.2"]
    assert plan.isolation is Isolation.PROCESSES
    assert (plan.network.master_port, plan.network.prefix_length) == (40001, 24)
    assert dict(plan.network.namespace_paths) == {}


def test_the_bundle_is_reproducible_and_holds_no_module_of_the_service():
    first, second = make_bundle(), make_bundle()
    assert (first.digest, first.data) == (second.digest, second.data)
    names = zipfile.ZipFile(io.BytesIO(first.data)).namelist()
    assert "clary/agent/__main__.py" in names
    assert "clary/contract/enrolment.py" in names
    assert not [name for name in names if name.startswith(("clary/control", "clary/cli", "clary/testing"))]
    assert first.digest not in repr(first.data[:0])
    assert len(first.data) < 16 * 1024 * 1024


def test_current_bytecode_is_bundled_and_used_without_a_check_of_its_source(tmp_path):
    package = tmp_path / "clary"
    for name in ("fresh", "stale", "bare"):
        (package / "agent").mkdir(parents=True, exist_ok=True)
        (package / "agent" / f"{name}.py").write_text(f"def told():\n    return {name!r}\n")
    (package / "__init__.py").touch()
    for name in ("fresh", "stale"):
        py_compile.compile(str(package / "agent" / f"{name}.py"), doraise=True)
    (package / "agent" / "stale.py").write_text("def told():\n    return 'changed'\n")
    bundle = make_bundle(package)
    with zipfile.ZipFile(io.BytesIO(bundle.data)) as archive:
        archive.extractall(tmp_path / "node")
        compiled = [name for name in archive.namelist() if name.endswith(".pyc")]
    assert compiled == [f"clary/agent/__pycache__/fresh.{sys.implementation.cache_tag}.pyc"]
    there = tmp_path / "node" / "clary" / "agent"
    (there / "fresh.py").write_text("raise ValueError('the source was read')\n")
    program = (
        "import fresh, stale, bare; print(fresh.told(), stale.told(), bare.told(), fresh.told.__code__.co_filename)"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], cwd=there, capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.split() == ["fresh", "changed", "bare", str(there / "fresh.py")]


@pytest.mark.parametrize("above", [".pycharm", "__pycache__"])
def test_names_of_folders_above_the_package_leave_nothing_out(tmp_path, above):
    package = tmp_path / above / "clary"
    (package / "agent").mkdir(parents=True)
    for path in (package / "__init__.py", package / "agent" / "some.py"):
        path.touch()
    names = zipfile.ZipFile(io.BytesIO(make_bundle(package).data)).namelist()
    assert names == ["clary/__init__.py", "clary/agent/some.py"]


def test_the_boot_needs_the_standard_library_alone():
    script = boot_script()
    assert "import clary" not in script
    assert "from clary" not in script
    compile(script, "boot.py", "exec")


def test_a_kind_whose_gpus_are_not_known_serves_only_if_no_known_kind_suffices():
    unsure = replace(kind("new", 8, 32), why_unsure="box9 has not reported its GPUs yet")
    for wanted, served, why in [
        (shape(4, 16), "small", ""),
        (shape(8, 61, 1), "new", "box9 has not reported its GPUs yet"),
        (shape(128, 61), "new", "box9 has not reported its GPUs yet"),
    ]:
        kinds = [SMALL, unsure]
        assert why_unsure(wanted, kinds, num_hosts=1) == why
        if not why:
            assert choose_known(wanted, kinds, num_hosts=1).kind.name == served
    assert choose_known(shape(8, 61, 1), [unsure], num_hosts=1).kind.name == "new", "such a job is admitted, and waits"
    assert why_unsure(shape(8, 61, 1), [unsure, GPU], num_hosts=1) == ""
    assert why_unsure(shape(192, 61, 1), [SMALL], num_hosts=1) == ""
