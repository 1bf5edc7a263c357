"""Which tensors are fused into one batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clary.train._native.interface import Dtype
from clary.train.horovod.fusion import plan
from clary.train.horovod.readiness import Ready
from clary.train.horovod.requests import Description, Reduction, Verb


def ready(name, elements, dtype=Dtype.FLOAT32, reduction=Reduction.SUM, verb=Verb.ALLREDUCE, refusal=""):
    return Ready(name, Description(verb, dtype, (elements,), reduction), refusal)


def names(batches):
    return [[one.name for one in batch] for batch in batches]


def test_small_tensors_of_one_type_and_reduction_are_fused():
    tensors = [ready("a", 4), ready("i", 4, Dtype.INT32), ready("b", 4), ready("m", 4, reduction=Reduction.MAX)]
    assert names(plan(tensors, max_bytes=1 << 20, max_single_bytes=1 << 10)) == [["a", "b"], ["i"], ["m"]]


def test_a_batch_ends_at_the_limit_of_its_memory():
    tensors = [ready(str(number), 100) for number in range(5)]
    assert names(plan(tensors, max_bytes=800, max_single_bytes=400)) == [["0", "1"], ["2", "3"], ["4"]]


def test_large_tensors_adasum_refusals_and_other_operations_run_alone():
    tensors = [
        ready("large", 1000),
        ready("adasum", 4, reduction=Reduction.ADASUM),
        ready("refused", 4, refusal="mismatched shape"),
        ready("gather", 4, verb=Verb.ALLGATHER),
        ready("small", 4),
    ]
    assert names(plan(tensors, max_bytes=1 << 20, max_single_bytes=400)) == [
        ["large"],
        ["adasum"],
        ["refused"],
        ["gather"],
        ["small"],
    ]


def test_a_threshold_of_zero_fuses_no_tensors():
    assert names(plan([ready("a", 4), ready("b", 4)], max_bytes=0, max_single_bytes=400)) == [["a"], ["b"]]


@given(st.lists(st.tuples(st.integers(0, 200), st.sampled_from(Reduction)), max_size=12), st.integers(0, 900))
def test_every_tensor_runs_once_and_batches_keep_their_limit(tensors, max_bytes):
    asked = [ready(str(place), elements, reduction=op) for place, (elements, op) in enumerate(tensors)]
    batches = plan(asked, max_bytes=max_bytes, max_single_bytes=400)
    assert sorted(one.name for batch in batches for one in batch) == sorted(one.name for one in asked)
    assert all(len(batch) == 1 or sum(one.description.num_bytes for one in batch) <= max_bytes for batch in batches)
