"""Every combination of degrees compared with one process, on 2, 4 and 8 ranks; run by test_smp_eight.

Each function runs the rows of `smp_eight_table` in which exactly its axes have degrees above 1, one after the other.
The test leaves out a function for a number of ranks that has no such row.
"""

import faulthandler
import gc
import os
from datetime import timedelta

import smdistributed.modelparallel.torch as smp
import torch.distributed as dist
from smp_core_program import start
from smp_eight_models import (
    NUM_ROWS,
    NUM_STEPS,
    batch_of,
    loss_of_batch,
    new_optimizer,
    parallel_model,
    recomputed_part,
    train_alone,
)
from smp_eight_table import CLIPPED_NORM, combinations

# Tolerance relative to the distance that a parameter has moved: sums of 8 ranks round otherwise than sums of one, and
# parameters round to 6e-8.
MOVED_TOLERANCE, ROUNDING = 2e-3, 3e-6

os.nice(10)  # eight ranks would keep two cores from tests that run beside them and have deadlines


@smp.step
def train_step(model, name, inputs, targets):
    loss = loss_of_batch(name, model, inputs, targets)
    model.backward(loss)
    return loss


def end_groups():
    """Destroy all process groups, and make a new one of all ranks.

    `smp.shutdown` does not destroy torch's groups, and each thread of gloo wakes a hundred times a second: the
    threads of thirty rows on eight ranks would use more processor time than the rows.
    """
    smp.shutdown()
    store, rank, size = dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()  # models hold groups in reference cycles
    store = dist.PrefixStore("next", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))


def train_parallel(one, expected, goes_one_way):
    """Train as a row of the table specifies; return the losses over the global batch, and the model."""
    end_groups()
    start(**one.configuration)
    module = parallel_model(one.model, one.tp)
    if one.extra == "recomputed":
        # layers of smp.nn take their arguments as a tuple
        packs = {"pack_args_as_tuple": True} if hasattr(module, "layout") else {}
        smp.set_activation_checkpointing(recomputed_part(module, one.model), **packs)
    model = smp.DistributedModel(module)
    if one.tp > 1 or one.model == "lmhead":  # modules of smp.nn draw weights of their own
        model.load_state_dict(expected.before)
    optimizer = smp.DistributedOptimizer(new_optimizer(one.optimizer, model))
    place = smp.rdp_rank() if one.prescaled else smp.dp_rank()
    length = NUM_ROWS // one.num_shares
    own = slice(place * length, (place + 1) * length)
    losses = []
    for number in range(NUM_STEPS):
        inputs, targets = batch_of(one.model, number, goes_one_way=goes_one_way)
        optimizer.zero_grad()
        loss = train_step(model, one.model, inputs[own], targets[own]).reduce_mean().item()
        losses.append(sum(smp.allgather(loss, smp.WORLD)) / one.size)
        optimizer.step()
    return losses, model


def differences(one):
    """Return the differences between a row of the table and one process, as messages."""
    # Ranks that gather parameters or activations for each other must take the same path through the model.
    goes_one_way = one.sdp > 1 or (one.tp > 1 and not one.prescaled)
    norm = CLIPPED_NORM if one.extra == "clipped" else None
    held = [None]
    if dist.get_rank() == 0:  # on one rank: there are fewer cores than ranks
        num_pieces = one.microbatches * one.num_shares
        held = [train_alone(one.model, one.optimizer, num_pieces, goes_one_way=goes_one_way, norm=norm)]
    dist.broadcast_object_list(held)
    expected = held[0]
    losses, model = train_parallel(one, expected, goes_one_way)
    found = []
    for number, (ours, theirs) in enumerate(zip(losses, expected.losses, strict=True)):
        if abs(ours - theirs) > 1e-5 + 1e-4 * abs(theirs):
            found.append(f"loss of step {number}: {ours}; alone {theirs}")
    state = model.state_dict()
    assert set(state) == set(expected.after), set(state) ^ set(expected.after)
    for name, value in expected.after.items():
        moved = (value - expected.before[name]).abs().max().item()
        apart = (state[name] - value).abs().max().item()
        if not apart <= ROUNDING + MOVED_TOLERANCE * moved:
            found.append(f"{name}: {apart:.2e} apart, where it has moved by {moved:.2e}")
    if one.pp > 1:
        assert set(model.owners.values()) == set(range(one.pp)), model.owners
    return [f"{one}: {words}" for words in found]


def run(size, *axes):
    # Eight ranks on few cores may take longer than the delay after which stacks are dumped; dumping the stacks of
    # running threads can end their process.
    faulthandler.cancel_dump_traceback_later()
    found = [words for one in combinations(size, *axes) for words in differences(one)]
    assert not found, "\n".join(found)


def test_pipelines(rank, size):
    run(size, "pp")


def test_tensor_groups(rank, size):
    run(size, "tp")


def test_replicas(rank, size):
    run(size, "rdp")


def test_shards(rank, size):
    run(size, "sdp")


def test_pipelines_of_tensor_groups(rank, size):
    run(size, "pp", "tp")


def test_replicated_pipelines(rank, size):
    run(size, "pp", "rdp")


def test_replicated_tensor_groups(rank, size):
    run(size, "tp", "rdp")


def test_sharded_tensor_groups(rank, size):
    run(size, "tp", "sdp")


def test_all_at_once(rank, size):
    run(size, "pp", "tp", "rdp")
