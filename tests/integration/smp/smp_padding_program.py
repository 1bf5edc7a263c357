"""Tensor groups in which only some ranks have a padded batch; run by test_smp_padding on 2 ranks.

transformers omits the mask of a batch without padded rows, so ranks call modules with different arguments.
"""

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.torch.nn.huggingface.gpt2 import (
    translate_hf_block_state_dict_to_smdistributed as block_to_ours,
)
from smp_core_program import start
from smp_eight_huggingface_program import TRANSLATIONS
from smp_huggingface_program import batch_of, bert, gpt2


def half_of(make, number, rank):
    """Return this rank's half of a batch; only the first half has a padded row."""
    return {name: value.chunk(2)[rank] for name, value in batch_of(make, number).items()}


def blocks_to_ours(state):
    """Return the state of transformers' GPT-2 with the names of a GPT-2 whose blocks alone are distributed."""
    found = {name: value for name, value in state.items() if ".h." not in name}
    for number in range(4):
        prefix = f"transformer.h.{number}."
        block = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        found |= {prefix + name: value for name, value in block_to_ours(block).items()}
    return found


def check(make, cut, to_ours):
    """Compare losses and gradients with those of one process.

    Args:
        cut: marks the modules of the model that are to be cut.
        to_ours: turns the state of the whole model into the state of the cut model.
    """
    alone = make()
    losses = [alone(**half_of(make, 0, half)).loss for half in (0, 1)]
    (sum(losses) / 2).backward()
    expected = to_ours({name: one.grad for name, one in alone.named_parameters()})
    for optimize in ("memory", "speed"):
        start(ddp=True, tensor_parallel_degree=2, optimize=optimize)
        module = make()
        cut(module)
        model = smp.DistributedModel(module)
        assert list(model.distributed_modules())
        model.load_state_dict(to_ours(make().state_dict()))
        loss = model(**half_of(make, 0, smp.tp_rank())).loss
        assert abs(loss.item() - losses[smp.tp_rank()].item()) < 1e-5
        model.backward(loss)
        model.reduce_gradients()
        for name, parameter in model.named_parameters():
            name = name.removeprefix("module.")
            piece = getattr(parameter, "tensor_slice", None)
            whole = expected[name]
            wanted = whole if piece is None else whole.chunk(2, piece.dimension)[smp.tp_rank()]
            apart = (parameter.grad - wanted).abs().max().item()
            assert apart < 1e-6 + 1e-3 * wanted.abs().max().item(), (name, apart)


def test_a_padded_batch_on_one_tensor_rank_trains_an_encoder(rank, size):
    check(bert, smp.set_tensor_parallelism, TRANSLATIONS[bert][0])


def test_a_padded_batch_on_one_tensor_rank_trains_the_blocks_of_a_decoder(rank, size):
    check(gpt2, lambda model: smp.set_tensor_parallelism(model.transformer.h), blocks_to_ours)


def test_a_padded_batch_on_one_tensor_rank_trains_a_whole_decoder(rank, size):
    check(gpt2, smp.set_tensor_parallelism, TRANSLATIONS[gpt2][0])
