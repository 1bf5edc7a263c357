from hypothesis import given
from hypothesis import strategies as st

from clary.control.scheduling.catalogue import GIB, lookup
from clary.control.scheduling.machine import Machine
from clary.control.scheduling.placement import (
    Capacity,
    Holding,
    InstanceGroup,
    Need,
    Place,
    Refuse,
    Wait,
    capacity_of,
    decide,
    map_hosts,
)
from clary.control.settings import Settings

SMALL = Machine(num_cpus=2, memory_bytes=20 * GIB)
GPU_BOX = Machine(num_cpus=32, memory_bytes=512 * GIB, num_gpus=8)


def mapping_of(*groups, machine=SMALL, settings=None):
    settings = settings or Settings()
    shapes = {kind: lookup(kind, settings.instance_types, machine=machine) for _, kind, _ in groups}
    requested = [InstanceGroup(name=name, instance_type=kind, num_hosts=count) for name, kind, count in groups]
    return map_hosts(requested, shapes, machine=machine, settings=settings)


def test_processes_are_clamped_to_cpus_and_a_note_states_it():
    mapping = mapping_of(("homogeneous", "ml.p4d.24xlarge", 2))
    assert [host.processes_per_host for host in mapping.hosts] == [2, 2]
    assert (
        "ml.p4d.24xlarge has 8 GPUs; this machine has 2 CPUs and no GPU: "
        "2 processes per host instead of 8 (setting clamp_processes)"
    ) in mapping.notes


def test_without_clamping_the_type_decides_and_a_note_states_it():
    mapping = mapping_of(("g", "ml.p4d.24xlarge", 1), settings=Settings(clamp_processes=False))
    assert mapping.hosts[0].processes_per_host == 8
    assert any("8 processes per host all the same" in note for note in mapping.notes)


def test_processes_named_by_settings_are_not_clamped():
    settings = Settings(instance_types={"ml.c5.xlarge": {"processes": 3}})
    assert mapping_of(("g", "ml.c5.xlarge", 1), settings=settings).hosts[0].processes_per_host == 3


def test_type_that_fits_the_machine_has_no_notes():
    mapping = mapping_of(("g", "ml.t3.medium", 2))
    assert mapping.notes == ()
    assert [host.name for host in mapping.hosts] == ["algo-1", "algo-2"]
    assert mapping.hosts[0].resources.memory_bytes == 4 * GIB
    assert mapping.hosts[0].resources.num_cpus == 2.0


def test_groups_number_hosts_in_order_and_keep_their_types():
    mapping = mapping_of(("gpu", "ml.g5.12xlarge", 1), ("cpu", "ml.c5.xlarge", 2), machine=GPU_BOX)
    assert [(h.name, h.instance_group, h.num_gpus) for h in mapping.hosts] == [
        ("algo-1", "gpu", 4),
        ("algo-2", "cpu", 0),
        ("algo-3", "cpu", 0),
    ]
    assert mapping.num_gpus == 4


def test_gpus_are_divided_among_the_hosts_of_a_job():
    mapping = mapping_of(("g", "ml.p4d.24xlarge", 2), machine=GPU_BOX)
    assert [host.num_gpus for host in mapping.hosts] == [4, 4]
    assert [host.processes_per_host for host in mapping.hosts] == [4, 4]
    assert any("16 GPUs" in note and "4 per host" in note for note in mapping.notes)
    place = decide(Need.of("j", mapping), [], capacity=capacity_of(GPU_BOX, Settings()))
    assert place == Place(gpus=((0, 1, 2, 3), (4, 5, 6, 7)))
    assert mapping.resources(place.gpus)["algo-2"].gpu_indices == (4, 5, 6, 7)


def test_hosts_share_gpus_when_there_are_fewer_gpus_than_hosts():
    machine = Machine(num_cpus=16, memory_bytes=128 * GIB, num_gpus=1)
    mapping = mapping_of(("g", "ml.p4d.24xlarge", 2), machine=machine)
    assert mapping.num_gpus == 1
    assert any("hosts share them" in note for note in mapping.notes)
    assert decide(Need.of("j", mapping), [], capacity=capacity_of(machine, Settings())) == Place(gpus=((0,), (0,)))


def test_the_link_is_taken_from_the_settings():
    settings = Settings(instance_types={"ml.c5.xlarge": {"rate_mbit_s": 100, "delay_ms": 2.5, "loss_percent": 1}})
    link = mapping_of(("g", "ml.c5.xlarge", 1), settings=settings).hosts[0].resources.link
    assert (link.rate_mbit_s, link.delay_ms, link.loss_percent) == (100, 2.5, 1)


def test_the_reason_of_a_wait_names_the_holders():
    capacity = Capacity(max_hosts=4, num_gpus=0, memory_per_host_bytes=GIB, memory_bytes=4 * GIB)
    running = [Holding(job_name="a", num_hosts=2), Holding(job_name="b", num_hosts=1)]
    need = Need(job_name="c", instance_type="ml.c5.xlarge", gpus_per_host=(0, 0), num_gpus=0)
    assert decide(need, running, capacity=capacity) == Wait(
        reason="Needs 2 hosts; 1 of 4 hosts is free: a holds 2, b holds 1."
    )


def test_a_job_that_can_never_fit_is_refused_with_the_message_of_sagemaker():
    capacity = Capacity(max_hosts=4, num_gpus=0, memory_per_host_bytes=GIB, memory_bytes=4 * GIB)
    need = Need(job_name="c", instance_type="ml.p3.2xlarge", gpus_per_host=(0,) * 5, num_gpus=0)
    decision = decide(need, [Holding(job_name="a", num_hosts=2)], capacity=capacity)
    assert isinstance(decision, Refuse)
    assert decision.reason.startswith(
        "The account-level service limit 'ml.p3.2xlarge for training job usage' is 4 Instances, with current "
        "utilization of 2 Instances and a request delta of 5 Instances. Please contact AWS support"
    )
    assert "max_hosts" in decision.reason


def test_capacity_of_a_small_machine_is_four_hosts_and_the_setting_wins():
    assert capacity_of(Machine(num_cpus=1, memory_bytes=GIB), Settings()).max_hosts == 4
    assert capacity_of(Machine(num_cpus=8, memory_bytes=GIB), Settings()).max_hosts == 16
    assert capacity_of(Machine(num_cpus=8, memory_bytes=GIB), Settings(max_hosts=3)).max_hosts == 3


@st.composite
def scenarios(draw):
    num_gpus = draw(st.integers(0, 8))
    machine = Machine(num_cpus=draw(st.integers(1, 16)), memory_bytes=64 * GIB, num_gpus=num_gpus)
    settings = Settings(
        max_hosts=draw(st.integers(0, 9)),
        clamp_processes=draw(st.booleans()),
        memory_overcommit=draw(st.sampled_from([1.0, 1.0, 3.5, 40.0])),
    )
    kinds = st.sampled_from(["ml.c5.xlarge", "ml.p4d.24xlarge", "ml.g5.12xlarge", "local_gpu", "ml.box.3gpu"])
    group = st.tuples(st.just("g"), kinds, st.integers(1, 6))
    jobs = draw(st.lists(st.lists(group, min_size=1, max_size=2), min_size=1, max_size=12))
    ends = draw(st.lists(st.integers(0, 3), min_size=len(jobs) * 3, max_size=len(jobs) * 3))
    return machine, settings, jobs, ends


@given(scenarios())
def test_queue_is_first_come_first_served_and_never_over_capacity(scenario):
    machine, settings, jobs, ends = scenario
    capacity = capacity_of(machine, settings)
    waiting, started, running = [], [], []
    for number, groups in enumerate(jobs):
        mapping = mapping_of(*groups, machine=machine, settings=settings)
        need = Need.of(f"job-{number}", mapping)
        decision = decide(need, running, capacity=capacity, queue_ahead=waiting)
        if isinstance(decision, Refuse):
            assert need.num_hosts > capacity.max_hosts
        else:
            waiting.append(need)
    order = [need.job_name for need in waiting]
    for position in ends:
        while waiting:
            # A younger job never starts while an older job waits, whatever is free.
            for index in range(1, len(waiting)):
                younger = decide(waiting[index], running, capacity=capacity, queue_ahead=waiting[:index])
                assert isinstance(younger, Wait)
                assert waiting[0].job_name in younger.reason
            decision = decide(waiting[0], running, capacity=capacity)
            if isinstance(decision, Wait):
                assert running
                assert "holds" in decision.reason
                break
            assert isinstance(decision, Place)
            need = waiting.pop(0)
            assert [len(gpus) for gpus in decision.gpus] == list(need.gpus_per_host)
            held = {index for gpus in decision.gpus for index in gpus}
            assert len(held) == need.num_gpus
            running.append(
                Holding(
                    job_name=need.job_name,
                    num_hosts=need.num_hosts,
                    gpu_indices=tuple(sorted(held)),
                    memory_bytes=need.memory_bytes,
                )
            )
            started.append(need.job_name)
            assert sum(holding.num_hosts for holding in running) <= capacity.max_hosts
            assert sum(holding.memory_bytes for holding in running) <= capacity.memory_bytes
            all_gpus = [index for holding in running for index in holding.gpu_indices]
            assert len(all_gpus) == len(set(all_gpus))
            assert all(index < machine.num_gpus for index in all_gpus)
        if running:
            running.pop(position % len(running))
    assert started == order[: len(started)]
    assert not waiting or running or len(started) < len(order)


@given(scenarios())
def test_hosts_have_at_least_one_process_and_never_more_than_their_type(scenario):
    machine, settings, jobs, _ = scenario
    for groups in jobs:
        mapping = mapping_of(*groups, machine=machine, settings=settings)
        for host in mapping.hosts:
            shape = lookup(host.instance_type, machine=machine)
            assert 1 <= host.processes_per_host <= shape.processes_per_host
            if host.processes_per_host < shape.processes_per_host:
                assert any("clamp_processes" in note for note in mapping.notes)
            assert host.num_gpus <= machine.num_gpus
            assert host.resources.memory_bytes <= shape.memory_bytes
