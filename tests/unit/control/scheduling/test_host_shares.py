"""Fractions of hosts: the resources of a job, and no more than a whole host or GPU given out in total."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clary.control.scheduling.catalogue import GIB, lookup
from clary.control.scheduling.host_shares import note_of, share_shape
from clary.control.scheduling.machine import Machine
from clary.control.scheduling.placement import (
    Capacity,
    Holding,
    InstanceGroup,
    Need,
    Place,
    Refuse,
    Wait,
    decide,
    map_hosts,
)
from clary.control.settings import Settings

ONE_GPU = Machine(num_cpus=8, memory_bytes=64 * GIB, num_gpus=1)
EIGHT_GPUS = Machine(num_cpus=96, memory_bytes=1024 * GIB, num_gpus=8)


def mapping_of(kind, share, *, machine, num_hosts=1):
    shapes = {kind: lookup(kind, {}, machine=machine)}
    group = InstanceGroup(name="g", instance_type=kind, num_hosts=num_hosts)
    return map_hosts([group], shapes, machine=machine, settings=Settings(), share=share)


@pytest.mark.parametrize(
    ("kind", "share", "num_gpus", "of_gpu"),
    [
        ("ml.g5.2xlarge", 1.0, 1, 1.0),
        ("ml.g5.2xlarge", 0.25, 1, 0.25),
        ("ml.p4d.24xlarge", 0.5, 4, 1.0),
        ("ml.p4d.24xlarge", 0.125, 1, 1.0),
        ("ml.p4d.24xlarge", 0.3, 2, 1.0),
        ("ml.p4d.24xlarge", 0.0625, 1, 0.5),
        ("ml.m5.large", 0.5, 0, 1.0),
    ],
)
def test_a_fraction_has_whole_gpus_as_long_as_it_has_at_least_one(kind, share, num_gpus, of_gpu):
    shared = share_shape(lookup(kind, {}, machine=EIGHT_GPUS), share)
    assert (shared.shape.num_gpus, shared.of_gpu) == (num_gpus, of_gpu)


def test_cpus_and_memory_are_divided_and_a_note_names_the_undivided_gpu():
    whole, quarter = (mapping_of("ml.g5.2xlarge", share, machine=ONE_GPU).hosts[0] for share in (1.0, 0.25))
    assert quarter.resources.num_cpus == whole.resources.num_cpus / 4 == 2.0
    assert quarter.resources.memory_bytes == whole.resources.memory_bytes // 4
    assert (quarter.num_gpus, quarter.processes_per_host) == (1, 1)
    notes = mapping_of("ml.g5.2xlarge", 0.25, machine=ONE_GPU).notes
    assert notes[0] == (
        "sagemaker_clary_host_share: each host has 0.25 of the CPUs and the memory of ml.g5.2xlarge, and 0.25 of one "
        "GPU, whose memory and time no limit divides"
    )
    assert note_of(lookup("ml.g5.2xlarge", {}, machine=ONE_GPU), 1.0) == ""


def test_four_quarters_share_a_gpu_and_a_host_and_the_fifth_waits_with_a_reason():
    capacity = Capacity(max_hosts=1, num_gpus=1, memory_per_host_bytes=60 * GIB, memory_bytes=60 * GIB)
    need = Need.of("next", mapping_of("ml.g5.2xlarge", 0.25, machine=ONE_GPU))
    running = []
    for number in range(4):
        decision = decide(need, running, capacity=capacity)
        assert decision == Place(gpus=((0,),))
        running.append(
            Holding(
                job_name=f"trial-{number}",
                num_hosts=1,
                gpu_indices=(0,),
                memory_bytes=need.memory_bytes,
                share=need.share,
                of_gpu=need.of_gpu,
            )
        )
    decision = decide(need, running, capacity=capacity)
    assert isinstance(decision, Wait)
    assert decision.reason.startswith("Needs 0.25 hosts; 0 of 1 host are free: trial-0 holds 0.25, ")


def test_a_job_is_too_large_by_the_sum_of_its_shares_and_not_by_its_number_of_hosts():
    capacity = Capacity(max_hosts=2, num_gpus=8, memory_per_host_bytes=GIB, memory_bytes=2000 * GIB)
    fits, too_large = (
        Need.of("job", mapping_of("ml.m5.large", 0.25, machine=EIGHT_GPUS, num_hosts=number)) for number in (8, 9)
    )
    assert isinstance(decide(fits, [], capacity=capacity), Place)
    refused = decide(too_large, [], capacity=capacity)
    assert isinstance(refused, Refuse)
    assert "a request delta of 2.25 Instances" in refused.reason


@pytest.mark.parametrize(("num_hosts", "of_gpu"), [(1, 0.25), (2, 0.5), (4, 1.0), (6, 1.0)])
def test_hosts_of_one_job_that_share_a_gpu_hold_it_together(num_hosts, of_gpu):
    assert mapping_of("ml.g5.2xlarge", 0.25, machine=ONE_GPU, num_hosts=num_hosts).of_gpu == of_gpu


def test_a_partly_held_gpu_is_given_to_other_parts_and_not_to_a_whole_need():
    capacity = Capacity(max_hosts=8, num_gpus=2, memory_per_host_bytes=GIB, memory_bytes=100 * GIB)
    part = Holding(job_name="part", num_hosts=1, gpu_indices=(1,), share=0.5, of_gpu=0.5)
    whole = Need(job_name="whole", instance_type="ml.g5.xlarge", gpus_per_host=(1,), num_gpus=1)
    other_part = Need(
        job_name="other", instance_type="ml.g5.xlarge", gpus_per_host=(1,), num_gpus=1, share=0.5, of_gpu=0.5
    )
    assert decide(whole, [part], capacity=capacity) == Place(gpus=((0,),))
    assert decide(other_part, [part], capacity=capacity) == Place(gpus=((1,),))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1.0, 0.5, 0.3, 0.25, 0.1, 0.01]), st.sampled_from(["ml.g5.2xlarge", "ml.p4d.24xlarge"])
        ),
        max_size=40,
    ),
    st.lists(st.integers(min_value=0, max_value=39), max_size=40),
)
def test_no_more_than_a_whole_host_or_gpu_is_given_out(jobs, ends):
    capacity = Capacity(max_hosts=4, num_gpus=8, memory_per_host_bytes=900 * GIB, memory_bytes=2000 * GIB)
    running = []
    for number, (share, kind) in enumerate(jobs):
        need = Need.of(f"job-{number}", mapping_of(kind, share, machine=EIGHT_GPUS))
        decision = decide(need, running, capacity=capacity)
        if isinstance(decision, Place):
            running.append(
                Holding(
                    job_name=need.job_name,
                    num_hosts=1,
                    gpu_indices=decision.gpus[0],
                    memory_bytes=need.memory_bytes,
                    share=need.share,
                    of_gpu=need.of_gpu,
                )
            )
        else:
            assert running, "what runs alone fits"
        assert sum(holding.share for holding in running) <= capacity.max_hosts + 1e-6
        assert sum(holding.memory_bytes for holding in running) <= capacity.memory_bytes
        for index in range(capacity.num_gpus):
            assert sum(one.of_gpu for one in running if index in one.gpu_indices) <= 1 + 1e-6
        if running and number < len(ends) and ends[number] % 3 == 0:
            running.pop(ends[number] % len(running))
