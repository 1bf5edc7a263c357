"""Memory of hosts on machines of all sizes, jobs that wait for memory, and the advice on memory."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.control.scheduling import memory
from clary.control.scheduling.catalogue import GIB, lookup
from clary.control.scheduling.machine import Machine
from clary.control.scheduling.memory import MIB, fair_shares, reserve_bytes
from clary.control.scheduling.placement import Holding, InstanceGroup, Need, Place, Wait, capacity_of, decide, map_hosts
from clary.control.settings import Settings

LAPTOP = Machine(num_cpus=8, memory_bytes=16 * GIB)
WORKSTATION = Machine(num_cpus=16, memory_bytes=64 * GIB, num_gpus=1)
GPU_BOX = Machine(num_cpus=96, memory_bytes=1152 * GIB, num_gpus=8)
SMALL = Machine(num_cpus=2, memory_bytes=24 * GIB)


def mapping_of(*groups, machine, settings=None):
    settings = settings or Settings()
    shapes = {kind: lookup(kind, settings.instance_types, machine=machine) for kind, _ in groups}
    requested = [InstanceGroup(name=kind, instance_type=kind, num_hosts=count) for kind, count in groups]
    return map_hosts(requested, shapes, machine=machine, settings=settings)


def gib_of(mapping):
    return [round(host.resources.memory_bytes / GIB, 1) for host in mapping.hosts]


@pytest.mark.parametrize(
    ("machine", "groups", "expected"),
    [
        (LAPTOP, [("ml.m5.large", 1)], [8]),
        (LAPTOP, [("ml.p4d.24xlarge", 1)], [14.4]),
        (LAPTOP, [("ml.p4d.24xlarge", 2)], [7.2, 7.2]),
        (LAPTOP, [("ml.t3.medium", 2)], [4, 4]),
        (LAPTOP, [("local", 1)], [14.4]),
        (WORKSTATION, [("ml.m5.4xlarge", 1)], [57.6]),
        (WORKSTATION, [("ml.g4dn.xlarge", 2)], [16, 16]),
        (WORKSTATION, [("ml.p3.8xlarge", 1), ("ml.m5.large", 2)], [41.6, 8, 8]),
        (GPU_BOX, [("ml.p4d.24xlarge", 1)], [1136]),
        (GPU_BOX, [("ml.g5.12xlarge", 2)], [192, 192]),
        (SMALL, [("ml.m5.xlarge", 1)], [16]),
        (SMALL, [("ml.c5.xlarge", 4)], [5.4, 5.4, 5.4, 5.4]),
    ],
)
def test_hosts_get_the_memory_of_their_types_as_far_as_the_machine_has_it(machine, groups, expected):
    mapping = mapping_of(*groups, machine=machine)
    assert gib_of(mapping) == expected
    # Every job fits when no other job runs.
    assert isinstance(decide(Need.of("j", mapping), [], capacity=capacity_of(machine, Settings())), Place)


@pytest.mark.parametrize(
    ("machine", "instance_type", "overcommit", "num_at_once"),
    [
        (LAPTOP, "ml.m5.large", 1.0, 1),
        (LAPTOP, "ml.t3.medium", 1.0, 3),
        (LAPTOP, "ml.p4d.24xlarge", 1.0, 1),
        (LAPTOP, "ml.p4d.24xlarge", 3.0, 3),
        (SMALL, "ml.m5.large", 1.0, 2),
        (WORKSTATION, "ml.m5.xlarge", 1.0, 3),
        (GPU_BOX, "ml.m5.4xlarge", 1.0, 17),
    ],
)
def test_jobs_start_while_the_sum_of_their_memory_fits(machine, instance_type, overcommit, num_at_once):
    settings = Settings(memory_overcommit=overcommit)
    capacity = capacity_of(machine, settings)
    need = Need.of("next", mapping_of((instance_type, 1), machine=machine, settings=settings))
    running = []
    while isinstance(decide(need, running, capacity=capacity), Place):
        running.append(Holding(job_name=f"job-{len(running)}", num_hosts=1, memory_bytes=need.memory_bytes))
    assert len(running) == num_at_once
    assert "of memory" in decide(need, running, capacity=capacity).reason


def test_a_job_that_waits_for_memory_gets_the_holders_and_advice():
    need = Need.of("b", mapping_of(("ml.m5.xlarge", 1), machine=SMALL))
    running = [Holding(job_name="a", num_hosts=2, memory_bytes=16 * GIB)]
    assert decide(need, running, capacity=capacity_of(SMALL, Settings())) == Wait(
        reason="Needs 16 GiB of memory for 1 host of ml.m5.xlarge; 5.6 GiB of 21.6 GiB are free: a holds 16 GiB. To "
        'run more at once, settings.toml can promise less to a host (memory_gib in [instance_types."ml.m5.xlarge"], or '
        "memory_per_host_bytes) or more than there is (memory_overcommit)."
    )


@pytest.mark.parametrize(
    ("instance_type", "num_hosts", "settings", "note", "advice"),
    [
        ("ml.m5.large", 1, {}, "", "an instance type with more memory gives it up to 21.6 GiB on this machine"),
        (
            "ml.p3.2xlarge",
            1,
            {},
            "61 GiB of memory; here a host may use 21.6 GiB (all that",
            "no instance type changes",
        ),
        (
            "ml.p3.2xlarge",
            2,
            {},
            "may use 10.8 GiB (the 2 hosts of the job divide the 21.6 GiB",
            "fewer hosts get more",
        ),
        ("ml.m5.large", 1, {"memory_per_host_bytes": GIB}, "(setting memory_per_host_bytes)", "raise it, up to 21.6"),
        ("ml.m5.large", 1, {"instance_types": {"ml.m5.large": {"memory_gib": 2}}}, "", "as does memory_gib in"),
        ("local", 1, {}, "local has 24 GiB of memory; here a host may use 21.6 GiB", "no instance type changes"),
        # The memory of a larger type is limited by the setting and by the other hosts of the job.
        (
            "ml.m5.large",
            1,
            {"memory_per_host_bytes": 8 * GIB},
            "",
            "memory_per_host_bytes limits every host here: raise it, up to 21.6 GiB (above 8 GiB with an instance type",
        ),
        ("ml.t3.medium", 1, {"memory_per_host_bytes": 6 * GIB}, "", "with more memory gives it up to 6 GiB"),
        ("ml.m5.large", 2, {}, "", "an instance type with more memory gives it up to 10.8 GiB"),
        ("ml.m5.large", 2, {"memory_overcommit": 1.5}, "", "an instance type with more memory gives it up to 16.2 GiB"),
        ("ml.m5.large", 2, {"memory_overcommit": 9.0}, "", "an instance type with more memory gives it up to 21.6 GiB"),
        ("ml.m5.large", 2, {"memory_per_host_bytes": 8 * GIB}, "", "limits every host here: raise it, up to 10.8 GiB"),
        ("ml.p3.2xlarge", 2, {"memory_per_host_bytes": 8 * GIB}, "(setting", "raise it, up to 10.8 GiB"),
        ("ml.m5.large", 3, {"memory_per_host_bytes": 8 * GIB}, "the 3 hosts of the job divide", "fewer hosts get more"),
        (
            "ml.m5.large",
            2,
            {"instance_types": {"ml.m5.large": {"memory_gib": 10.8}}},
            "",
            "no instance type changes it: fewer hosts",
        ),
        ("local", 1, {"instance_types": {"local": {"memory_gib": 21.6}}}, "", "no instance type changes it: use less"),
        (
            "local",
            1,
            {"memory_per_host_bytes": int(21.6 * GIB)},
            "all that this machine has",
            "no instance type changes",
        ),
    ],
)
def test_note_and_advice_name_the_settings_that_help_on_this_machine(instance_type, num_hosts, settings, note, advice):
    mapping = mapping_of((instance_type, num_hosts), machine=SMALL, settings=Settings(**settings))
    assert note in " ".join(mapping.notes)
    assert advice in mapping.hosts[0].resources.memory_advice
    if "no instance type changes it" in mapping.hosts[0].resources.memory_advice:
        assert "instance type with more" not in mapping.hosts[0].resources.memory_advice


def test_a_larger_type_for_one_group_gets_the_memory_left_by_the_other_groups():
    mapping = mapping_of(("ml.m5.large", 1), ("ml.t3.medium", 2), machine=SMALL)
    advice = {host.instance_type: host.resources.memory_advice for host in mapping.hosts}
    assert "gives it up to 13.6 GiB" in advice["ml.m5.large"]  # the two other hosts keep 4 GiB each
    assert "gives it up to 7.2 GiB" in advice["ml.t3.medium"]  # a third for each host, less than the first one requests


SETTINGS_OF_MEMORY = st.fixed_dictionaries(
    {
        "memory_per_host_bytes": st.sampled_from(
            [size * GIB // 2 for size in range(49)]
        ),  # 0 means that the setting is unset
        "memory_overcommit": st.sampled_from([1.0, 1.3, 4.0]),
    }
)


@given(st.sampled_from(["ml.t3.medium", "ml.m5.large", "ml.m5.xlarge", "local"]), st.integers(1, 9), SETTINGS_OF_MEMORY)
def test_a_larger_type_is_advised_exactly_if_it_gives_more(instance_type, num_hosts, settings):
    larger = {**settings, "instance_types": {instance_type: {"memory_gib": 4000}}}
    here, there = (
        mapping_of((instance_type, num_hosts), machine=SMALL, settings=Settings(**chosen)).hosts[0].resources
        for chosen in (settings, larger)
    )
    is_advised = here.memory_advice.startswith("an instance type with more memory gives it up to ")
    assert is_advised == (there.memory_bytes >= here.memory_bytes + MIB)
    if is_advised:
        assert f"up to {memory.gib(there.memory_bytes)} on" in here.memory_advice


@given(st.sampled_from(["ml.t3.medium", "ml.m5.large", "local"]), st.integers(1, 9), SETTINGS_OF_MEMORY)
def test_raising_the_setting_is_advised_only_if_it_gives_more(instance_type, num_hosts, settings):
    unset = {**settings, "memory_per_host_bytes": 0, "instance_types": {instance_type: {"memory_gib": 4000}}}
    here, there = (
        mapping_of((instance_type, num_hosts), machine=SMALL, settings=Settings(**chosen)).hosts[0].resources
        for chosen in (settings, unset)
    )
    if here.memory_advice.startswith("setting memory_per_host_bytes limits every host here: raise it, up to "):
        assert there.memory_bytes >= here.memory_bytes + MIB
        assert f"up to {memory.gib(there.memory_bytes)}" in here.memory_advice


def test_a_job_with_more_memory_than_the_machine_blocks_others_only_while_it_runs():
    capacity = capacity_of(SMALL, Settings())
    need = Need.of("b", mapping_of(("ml.t3.medium", 1), machine=SMALL))
    assert isinstance(
        decide(need, [Holding(job_name="a", num_hosts=1, memory_bytes=90 * GIB)], capacity=capacity), Wait
    )
    assert isinstance(decide(need, [], capacity=capacity), Place)


@pytest.mark.parametrize(
    ("machine_gib", "reserve_gib"), [(1, 0.25), (2, 0.5), (8, 1), (16, 1.6), (64, 6.4), (1152, 16)]
)
def test_machine_keeps_a_reserve_for_the_system(machine_gib, reserve_gib):
    assert round(reserve_bytes(machine_gib * GIB) / GIB, 2) == reserve_gib


@given(st.lists(st.integers(1, 2000 * GIB), min_size=1, max_size=20), st.integers(0, 1200 * GIB))
def test_shares_never_exceed_wish_or_machine_and_a_larger_wish_never_gets_less(wanted, total):
    shares = fair_shares(wanted, total)
    assert sum(shares) <= total
    assert all(share <= wish for share, wish in zip(shares, wanted, strict=True))
    by_wish = sorted(zip(wanted, shares, strict=True))
    assert all(share <= other + MIB for (_, share), (_, other) in itertools.pairwise(by_wish))
    if sum(wanted) <= total:
        assert shares == wanted


def test_sizes_are_formatted_with_three_digits():
    assert [memory.gib(size) for size in (GIB // 2, 21.6 * GIB, 1136 * GIB)] == ["0.5 GiB", "21.6 GiB", "1136 GiB"]
