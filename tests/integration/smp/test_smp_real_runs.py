"""Real models on real text, trained by SMP v1 and by torch's DDP on the same batches: loss curves agree and fall.

Small versions of `python -m benchmarks parity`.
"""

from dataclasses import replace

import pytest
from benchmarks.training.bench_parity import QUICK_GPT2, QUICK_MINILM, TOLERANCE, Curve, train
from benchmarks.training.parity_runs import docstrings, sentence_pairs

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("smp-real-runs")]
needs_transformers = pytest.mark.needs("hf")
needs_minilm = pytest.mark.needs("minilm")
LIMIT_S = 180.0


def assert_same(ours: Curve, peer: Curve) -> None:
    assert ours.furthest_from(peer) <= TOLERANCE, (ours.losses, peer.losses)
    assert peer.has_fallen, peer.losses
    assert ours.has_fallen, ours.losses


@needs_transformers
@pytest.mark.long(34)
def test_gpt2_in_a_pipeline_learns_as_replicas_do():
    assert_same(train(replace(QUICK_GPT2, way="pipeline"), limit_s=LIMIT_S), train(QUICK_GPT2, limit_s=LIMIT_S))


@needs_transformers
@needs_minilm
@pytest.mark.long
def test_a_trained_encoder_is_tuned_in_pipelines_and_tensor_groups_as_in_replicas():
    peer = train(QUICK_MINILM, limit_s=LIMIT_S)
    for way in ("pipeline", "tensor"):
        assert_same(train(replace(QUICK_MINILM, way=way), limit_s=LIMIT_S), peer)


@pytest.mark.long(15)
def test_the_text_is_prose():
    assert sum(map(len, docstrings())) > 500_000
    pairs = sentence_pairs()
    assert len(pairs) > 500
    assert all(first[0].isalnum() or first[0] in "\"'([*`_-" for first, _ in pairs[:100]), pairs[:100]


def test_curves_that_differ_or_do_not_fall_are_seen():
    falling, other = Curve([3.0, 2.0, 1.0], [], ""), Curve([3.0, 2.0, 1.1], [], "")
    assert falling.has_fallen
    assert falling.furthest_from(other) > TOLERANCE
    assert not Curve([1.0, 2.0, 3.0], [], "").has_fallen
