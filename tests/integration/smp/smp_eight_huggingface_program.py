"""GPT-2 and BERT of transformers on eight ranks, compared with one process; run by test_smp_eight_huggingface."""

import faulthandler
from contextlib import nullcontext
from functools import cache

import smdistributed.modelparallel.torch as smp
import torch
from smdistributed.modelparallel.torch.nn.huggingface import bert as of_bert
from smdistributed.modelparallel.torch.nn.huggingface import gpt2 as of_gpt2
from smp_core_program import start
from smp_eight_models import Course, new_optimizer
from smp_eight_program import MOVED_TOLERANCE, ROUNDING
from smp_huggingface_program import batch_of, bert, gpt2

NUM_STEPS = 2
TRANSLATIONS = {  # to the names of distributed modules, and back
    gpt2: (of_gpt2.translate_hf_state_dict_to_smdistributed_gpt2, of_gpt2.translate_state_dict_to_hf_gpt2),
    bert: (of_bert.translate_hf_state_dict_to_smdistributed_bert, of_bert.translate_state_dict_to_hf_bert),
}


@smp.step
def train_step(model, inputs):
    outputs = model(**inputs)
    model.backward(outputs["loss"])
    return outputs["loss"]


@cache
def train_alone(make):
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = new_optimizer("adamw", model)
    losses = []
    for number in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = model(**batch_of(make, number)).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Course(losses, before, model.state_dict())


def check(make, **config):
    """Train as configured; check that losses and parameters are those of one process."""
    faulthandler.cancel_dump_traceback_later()  # eight ranks on few cores may be slow: see `run` in smp_eight_program
    expected = train_alone(make)
    start(ddp=True, **config)
    is_cut = smp.tp_size() > 1
    to_ours, to_theirs = TRANSLATIONS[make]
    with smp.tensor_parallelism() if is_cut else nullcontext():
        module = make()
    model = smp.DistributedModel(module)
    if is_cut:
        assert list(model.distributed_modules())
        model.load_state_dict(to_ours(expected.before))
    optimizer = smp.DistributedOptimizer(new_optimizer("adamw", model))
    prescaled = smp.state.cfg.prescaled_batch
    place, shares = (smp.rdp_rank(), smp.rdp_size()) if prescaled else (smp.dp_rank(), smp.dp_size())
    losses = []
    for number in range(NUM_STEPS):
        inputs = {name: value.chunk(shares)[place] for name, value in batch_of(make, number).items()}
        optimizer.zero_grad()
        loss = train_step(model, inputs).reduce_mean().item()
        losses.append(sum(smp.allgather(loss, smp.WORLD)) / smp.size())
        optimizer.step()
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected.losses), atol=1e-5, rtol=1e-4)
    state = model.state_dict()
    state = to_theirs(state) if is_cut else state
    assert set(state) == set(expected.after), set(state) ^ set(expected.after)
    for name, value in expected.after.items():
        moved = (value - expected.before[name]).abs().max().item()
        apart = (state[name] - value).abs().max().item()
        assert apart <= ROUNDING + MOVED_TOLERANCE * moved, f"{name}: {apart:.2e} apart, moved by {moved:.2e}"


def test_gpt2_in_two_pipelines_of_four(rank, size):
    check(gpt2, partitions=4, microbatches=4)


def test_bert_in_a_pipeline_of_eight(rank, size):
    check(bert, partitions=8, microbatches=4, pipeline="simple")


def test_gpt2_in_pipelines_of_tensor_groups_in_replicas(rank, size):
    check(gpt2, partitions=2, tensor_parallel_degree=2, microbatches=2, placement_strategy="PTD", prescaled_batch=True)


def test_bert_in_pipelines_of_tensor_groups_in_replicas(rank, size):
    check(bert, partitions=2, tensor_parallel_degree=2, microbatches=2, optimize="speed", shard_optimizer_state=True)


def test_gpt2_in_tensor_groups_of_four(rank, size):
    check(gpt2, tensor_parallel_degree=4, optimize="speed")


def test_bert_in_shards_of_tensor_groups(rank, size):
    check(
        bert,
        tensor_parallel_degree=2,
        prescaled_batch=True,
        sharded_data_parallel_degree=4,
        sdp_param_persistence_threshold=20,
        sdp_gradient_clipping=1e9,
    )


def test_gpt2_in_shards_of_eight(rank, size):
    check(gpt2, sharded_data_parallel_degree=8, sdp_param_persistence_threshold=20, sdp_gradient_clipping=1e9)
