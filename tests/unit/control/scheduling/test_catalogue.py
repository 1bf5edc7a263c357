import importlib.util
import re
from pathlib import Path

import pytest

from clary.base.errors import ContractError
from clary.control.scheduling.catalogue import GIB, known_types, lookup
from clary.control.scheduling.machine import Machine

MACHINE = Machine(num_cpus=2, memory_bytes=24 * GIB)
GPU_MACHINE = Machine(num_cpus=16, memory_bytes=128 * GIB, num_gpus=2)


@pytest.mark.parametrize(
    ("name", "cpus", "memory_gib", "gpus", "mbit_s"),
    [
        ("ml.c5.xlarge", 4, 8, 0, 10_000),
        ("ml.c5.9xlarge", 36, 72, 0, 12_000),
        ("ml.c4.8xlarge", 36, 60, 0, 10_000),
        ("ml.m5.24xlarge", 96, 384, 0, 25_000),
        ("ml.r5.large", 2, 16, 0, 10_000),
        ("ml.t3.medium", 2, 4, 0, 5_000),
        ("ml.c7i.48xlarge", 192, 384, 0, 50_000),
        ("ml.g4dn.12xlarge", 48, 192, 4, 50_000),
        ("ml.g5.16xlarge", 64, 256, 1, 25_000),
        ("ml.p3dn.24xlarge", 96, 768, 8, 100_000),
        ("ml.p4d.24xlarge", 96, 1152, 8, 400_000),
        ("ml.p5.4xlarge", 16, 256, 1, 100_000),
        ("ml.p6e-gb200.36xlarge", 144, 960, 4, 1_600_000),
    ],
)
def test_known_types_have_their_real_shapes(name, cpus, memory_gib, gpus, mbit_s):
    shape = lookup(name, machine=MACHINE)
    assert (shape.num_cpus, shape.memory_bytes, shape.num_gpus) == (cpus, memory_gib * GIB, gpus)
    assert shape.network_mbit_s == mbit_s
    assert shape.is_known
    assert shape.explanation == ""


def test_neuron_cores_count_as_processes():
    assert lookup("ml.trn1.32xlarge", machine=MACHINE).processes_per_host == 32


def test_catalogue_holds_every_type_of_the_api_and_is_up_to_date():
    path = Path(__file__).parents[4] / "tools" / "make_instance_types.py"
    spec = importlib.util.spec_from_file_location("make_instance_types", path)
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["make_instance_types"] = maker  # dataclasses look their module up in sys.modules
    try:
        spec.loader.exec_module(maker)
        assert maker.missing_types() == []
        assert maker.TARGET.read_text() == maker.render()
    finally:
        del sys.modules["make_instance_types"]


def test_every_known_type_has_a_plausible_shape():
    for name in known_types():
        shape = lookup(name, machine=MACHINE)
        assert re.fullmatch(r"ml\.[a-z0-9-]+\.[a-z0-9]+", name)
        assert shape.num_cpus >= 2
        assert 1 <= shape.memory_bytes / GIB / shape.num_cpus <= 32, name
        assert shape.network_mbit_s >= 750


def test_local_types_are_this_machine():
    assert lookup("local", machine=GPU_MACHINE).num_gpus == 0
    assert lookup("local", machine=GPU_MACHINE).num_cpus == 16
    assert lookup("local_gpu", machine=GPU_MACHINE).num_gpus == 2
    assert "this machine" in lookup("local_gpu", machine=GPU_MACHINE).explanation


@pytest.mark.parametrize(
    ("name", "gpus", "cpus"),
    [
        ("ml.mybox.8gpu", 8, 32),
        ("ml.mybox.2-GPUs", 2, 8),
        ("ml.8gpubox.large", 0, 2),
        ("ml.h100", 0, 4),
        ("ml.m99.16xlarge", 0, 64),
        ("", 0, 4),
        ("ml.x.99999999gpu", 0, 4),
    ],
)
def test_unknown_types_are_accepted_and_explained(name, gpus, cpus):
    shape = lookup(name, machine=MACHINE)
    assert (shape.num_gpus, shape.num_cpus) == (gpus, cpus)
    assert not shape.is_known
    assert "not in the catalogue" in shape.explanation


def test_settings_override_shape_link_and_processes():
    table = {
        "ml.c5.xlarge": {"gpus": 2, "cpus": 3, "memory_gib": 1.5, "rate_mbit_s": 100, "delay_ms": 5, "processes": 4}
    }
    shape = lookup("ml.c5.xlarge", table, machine=MACHINE)
    assert (shape.num_gpus, shape.num_cpus, shape.memory_bytes, shape.processes_per_host) == (2, 3, int(1.5 * GIB), 4)
    assert (shape.link.rate_mbit_s, shape.link.delay_ms, shape.link.loss_percent) == (100, 5, 0)
    assert "settings say GPUs 2" in shape.explanation
    assert lookup("ml.c5.2xlarge", table, machine=MACHINE).link.rate_mbit_s is None


@pytest.mark.parametrize(
    "override",
    [
        {"gpu": 1},
        {"gpus": -1},
        {"gpus": True},
        {"gpus": 1.5},
        {"rate_mbit_s": 0},
        {"loss_percent": 101},
        {"delay_ms": "5"},
        {"memory_gib": float("inf")},
        {"memory_gib": float("nan")},
    ],
)
def test_impossible_overrides_are_refused_by_name(override):
    with pytest.raises(ContractError, match=re.escape('[instance_types."ml.x"]')) as caught:
        lookup("ml.x", {"ml.x": override}, machine=MACHINE)
    assert next(iter(override)) in caught.value.message
