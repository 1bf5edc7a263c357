"""Activation checkpointing. Functions `test_...()`; see `torch_programs`."""

import copy
import logging
import pickle

import torch
from torch import nn

from clary.train.parallel.memory import checkpointing
from clary.train.parallel.memory.checkpointing import (
    Placement,
    checkpoint,
    checkpoint_sequential,
    run_segment,
    set_activation_checkpointing,
    unset_activation_checkpointing,
    use_placement,
)

torch.set_num_threads(1)


class Block(nn.Module):
    """A block that keeps much more memory than its input."""

    num_calls = 0

    def __init__(self, width=16):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(0.3)

    def forward(self, hidden, scale=None, *, mask=None):
        type(self).num_calls += 1
        out = self.drop(self.inner(hidden))
        out = out if scale is None else out * scale
        return hidden + (out if mask is None else out * mask["kept"])


class Pair(nn.Module):
    """Takes two tensors and returns two tensors."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, left, right):
        return self.inner(left).tanh(), right + left


class TuplePair(Pair):
    """Like `Pair`, with one tuple as argument and as result."""

    def forward(self, pair):
        return super().forward(*pair)


def stack(kind=Block, num=4):
    torch.manual_seed(1)
    return nn.Sequential(*[kind() for _ in range(num)])


def trained(model, *args, **kwargs):
    """Return the result and all gradients, after a fixed seed."""
    torch.manual_seed(2)
    model.zero_grad()
    inputs = [arg.clone().requires_grad_() for arg in args]
    out = model(*inputs, **kwargs)
    (out[0].sum() * out[1].sum() if isinstance(out, tuple) else out.square().sum()).backward()
    return [out, *[one.grad for one in inputs], *[parameter.grad for parameter in model.parameters()]]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for left, right in zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]:
            assert torch.equal(left, right)


def kept_bytes(model, *args):
    """Return the bytes that autograd keeps for backward; each storage counts once, parameters do not count."""
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            found[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(*args)
    return sum(found.values())


def raised(function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller looks at it
        return error
    raise AssertionError("nothing was raised")


BATCH = torch.linspace(-1, 1, 8 * 16).reshape(8, 16)


def test_results_and_gradients_are_bitwise_equal_with_dropout():
    model = stack()
    expected = trained(model, BATCH)
    for strategy in ("each", "contiguous", "group_3"):
        marked = copy.deepcopy(model)
        set_activation_checkpointing(marked, strategy=strategy)
        assert_same(trained(marked, BATCH), expected)
    for child in model:
        set_activation_checkpointing(child)
    assert_same(trained(model, BATCH), expected)


def test_every_block_runs_twice_and_keeps_only_its_input():
    model = stack(num=4)
    Block.num_calls = 0
    before = kept_bytes(model, BATCH)
    assert Block.num_calls == 4
    set_activation_checkpointing(model)
    after = kept_bytes(model, BATCH.clone())
    assert after == 4 * BATCH.nbytes
    assert before > 5 * after
    set_activation_checkpointing(model, strategy="contiguous")
    assert kept_bytes(model, BATCH.clone()) == BATCH.nbytes
    Block.num_calls = 0
    trained(model, BATCH)
    assert Block.num_calls == 8


def test_without_preserved_rng_state_dropout_draws_other_numbers():
    model = stack()
    expected = trained(model, BATCH)
    set_activation_checkpointing(model, preserve_rng_state=False)
    assert any(not torch.equal(*pair) for pair in zip(trained(model, BATCH)[1:], expected[1:], strict=True))


def test_named_and_nested_arguments_are_accepted():
    model, mask = Block(), {"kept": torch.full((16,), 0.5)}
    scale = torch.full((16,), 2.0)
    expected = trained(model, BATCH, scale, mask=mask)
    set_activation_checkpointing(model)
    assert_same(trained(model, BATCH, scale, mask=mask), expected)


def test_tuples_are_unpacked_or_passed_on_whole():
    model = stack(Pair, 3)
    right = BATCH.flip(0)

    def plain(left, right):
        value = (left, right)
        for child in model:
            value = child(*value)
        return value

    plain.zero_grad, plain.parameters = model.zero_grad, model.parameters
    expected = trained(plain, BATCH, right)
    set_activation_checkpointing(model, strategy="group_2")
    assert_same(trained(model, BATCH, right), expected)
    packed = nn.Sequential(*[TuplePair() for _ in range(3)])
    packed.load_state_dict(model.state_dict())
    for packs in (True, False):  # a module with one argument receives the tuple in both cases
        set_activation_checkpointing(packed, pack_args_as_tuple=packs)
        assert_same(trained(packed, BATCH, right), expected)


class Residual(nn.Sequential):
    """A sequence with its own forward function."""

    def forward(self, hidden):
        return hidden + super().forward(hidden)


def test_a_sequence_with_its_own_forward_is_treated_like_other_modules():
    torch.manual_seed(1)
    model = nn.Sequential(Residual(nn.Linear(16, 16), nn.Tanh()), nn.Linear(16, 16))
    hidden = torch.randn(3, 16)
    expected = trained(model, hidden)
    set_activation_checkpointing(model[0])
    assert_same(trained(model, hidden), expected)
    set_activation_checkpointing(model, strategy="contiguous")
    assert_same(trained(model, hidden), expected)
    assert "may be given for a torch.nn.Sequential only" in str(
        raised(lambda: set_activation_checkpointing(model[0], strategy="contiguous"))
    )


def test_calls_in_a_forward_checkpoint_too():
    model = stack()
    expected = trained(model, BATCH)

    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, hidden):
            return checkpoint(self.inner, hidden)

    class Sequence(Once):
        def forward(self, hidden):
            return checkpoint_sequential(self.inner, hidden, strategy="group_2")

    for kind in (Once, Sequence):
        whole = kind()
        assert_same(trained(whole, BATCH), expected)
        assert kept_bytes(whole, BATCH.clone()) <= 2 * BATCH.nbytes


def test_marks_can_be_replaced_removed_copied_and_pickled():
    model = stack(num=2)
    names = list(model.state_dict())
    set_activation_checkpointing(model)
    set_activation_checkpointing(model[0])
    set_activation_checkpointing(model[0], preserve_rng_state=False)
    copied = copy.deepcopy(model)
    assert list(model.state_dict()) == list(copied.state_dict()) == names
    nn.init.zeros_(copied[0].inner[0].weight)
    assert not torch.equal(copied(BATCH), model(BATCH))
    assert copied[0].forward.forward.__self__ is copied[0]
    unset_activation_checkpointing(model)
    unset_activation_checkpointing(model[0])
    assert "forward" not in vars(model)
    assert model[0].forward == Block.forward.__get__(model[0])


def test_marked_modules_can_be_pickled():
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    set_activation_checkpointing(model, strategy="contiguous")
    set_activation_checkpointing(model[0])
    assert_same(trained(pickle.loads(pickle.dumps(model)), BATCH), trained(model, BATCH))


def test_invalid_targets_and_arguments_are_refused():
    for function in (checkpoint, set_activation_checkpointing):
        error = raised(function, torch.tanh)
        assert isinstance(error, TypeError)
        assert "expected an instance of torch.nn.Module" in str(error)
    assert isinstance(raised(checkpoint_sequential, Block(), BATCH), TypeError)
    for wrong in ({"strategy": "contiguous"}, {"pack_args_as_tuple": True}):
        assert "for a torch.nn.Sequential only" in str(raised(set_activation_checkpointing, Block(), **wrong))
    model = stack(num=1)
    assert "group_0" in str(raised(set_activation_checkpointing, model, strategy="group_0"))
    assert "forward" not in vars(model)


def test_without_gradients_no_block_is_recomputed():
    model = stack(num=2)
    set_activation_checkpointing(model)
    Block.num_calls = 0
    with torch.no_grad():
        model(BATCH)
    assert Block.num_calls == 2


def placed(model, ranks, **more):
    """Place the children of a sequence, with their submodules, on ranks; a pair of ranks splits a child."""
    owner = {}
    for child, rank in zip(model, ranks, strict=True):
        parts = list(child.modules())
        for number, part in enumerate(parts):
            owner[part] = rank if isinstance(rank, int) else rank[number % 2]
    return Placement(own_rank=0, owner_of=owner.get, **more)


def test_segments_of_other_ranks_run_there_as_one_call():
    model, asked = stack(num=5), []

    def elsewhere(sequential, segment, value, **flags):
        asked.append((segment.start, segment.stop, segment.owner, flags["preserve_rng_state"]))
        return run_segment(sequential, segment, value, **flags)

    expected = trained(model, BATCH)
    set_activation_checkpointing(model, strategy="contiguous")
    try:
        use_placement(placed(model, [0, 0, 1, 1, 0], run_segment=elsewhere))
        assert_same(trained(model, BATCH), expected)
        assert asked == [(2, 4, 1, True)]
        use_placement(placed(model, [0, 0, 1, 1, 0]))
        Block.num_calls = 0
        assert_same(trained(model, BATCH), expected)
        assert Block.num_calls == 5 + 3  # segments of rank 1 are recomputed by rank 1
    finally:
        use_placement(None)


def test_a_module_on_several_ranks_is_refused_or_left_unchanged():
    model = stack(num=2)
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    checkpointing._log.addHandler(handler)
    expected = trained(model, BATCH)
    set_activation_checkpointing(model)
    set_activation_checkpointing(model[0])
    try:
        use_placement(placed(model, [(0, 1), 0]))
        Block.num_calls = 0
        for _ in range(2):
            assert_same(trained(model, BATCH), expected)
        assert Block.num_calls == 2 * (2 + 1)
        assert len(messages) == 1
        assert "a Block with 4 parameters lies on pipeline ranks 0, 1" in messages[0]
        use_placement(placed(model, [(0, 1), 0], is_manual=True))
        for call in (lambda: model(BATCH), lambda: model[0](BATCH), lambda: checkpoint(model[0], BATCH)):
            error = raised(call)
            assert isinstance(error, ValueError)
            assert "place all of it with one smp.set_partition" in str(error)
    finally:
        use_placement(None)
        checkpointing._log.removeHandler(handler)
