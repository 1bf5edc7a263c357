"""Modules that a program wants distributed, and their registration. Functions `test_...()`; see `torch_programs`."""

import copy
import inspect
import logging
import threading

import torch
from torch import nn

from clary.train.parallel.tensor.huggingface.architectures import ARCHITECTURES
from clary.train.parallel.tensor.huggingface.reader import translators
from clary.train.parallel.tensor.linear import DistributedLinear
from clary.train.parallel.tensor.registry import (
    ARGUMENTS,
    Mark,
    mark_of,
    registered,
    set_tensor_parallelism,
    tensor_parallelism,
    tp_register,
    tp_register_with_module,
    unregister,
)
from clary.train.parallel.tensor.settings import LayerSettings, read_settings

TRANSLATION = ARCHITECTURES["gpt2"].translation
neox_to_theirs, neox_to_ours = translators("gpt_neox")


def raised(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller looks at it
        return error
    raise AssertionError("nothing was raised")


def test_modules_made_inside_a_context_are_marked_by_the_innermost_one():
    before = nn.Linear(2, 2)
    with tensor_parallelism(fused_softmax=True):
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        with tensor_parallelism(enabled=False):
            inner = nn.Linear(2, 2)
        later = nn.Linear(2, 2)
    after = nn.Linear(2, 2)
    wanted = Mark(is_enabled=True, keywords={"fused_softmax": True})
    assert [mark_of(one) for one in (model, *model)] == [wanted] * 3
    assert mark_of(inner) == Mark(is_enabled=False)
    assert mark_of(later) == wanted
    assert mark_of(before) is None
    assert mark_of(after) is None
    assert mark_of(copy.deepcopy(later)) == wanted


def test_module_init_is_patched_only_inside_a_context():
    own = nn.Module.__init__
    with tensor_parallelism(), tensor_parallelism(enabled=False):
        assert nn.Module.__init__ is not own
    assert nn.Module.__init__ is own

    def fail():
        with tensor_parallelism():
            raise KeyError("of the program")

    assert isinstance(raised(fail), KeyError)
    assert nn.Module.__init__ is own
    assert mark_of(nn.Linear(2, 2)) is None


def test_another_thread_is_in_no_context():
    made = []
    with tensor_parallelism():
        thread = threading.Thread(target=lambda: made.append(nn.Linear(2, 2)))
        thread.start()
        thread.join(10)
    assert mark_of(made[0]) is None


def test_a_call_marks_all_submodules_and_the_last_call_wins():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    set_tensor_parallelism(model, zero_init=1)
    set_tensor_parallelism(model[1], False)
    assert mark_of(model[0]) == Mark(is_enabled=True, keywords={"zero_init": 1})
    assert [mark_of(one) for one in model[1].modules()] == [Mark(is_enabled=False)] * 2


def test_registered_classes_record_their_arguments():
    @tp_register(DistributedLinear, init_hook=lambda size, *, scale=2: ((size, size), {}))
    class Square(nn.Linear):
        """Has its own arguments."""

        def __init__(self, size, *, scale=2):
            super().__init__(size, size)

    class Special(Square):
        """Another class, which is not registered."""

        def __init__(self):
            super().__init__(3, scale=5)

    one = Square(4, scale=1)
    assert one.__dict__[ARGUMENTS] == ((4,), {"scale": 1})
    assert ARGUMENTS not in Special().__dict__
    assert str(inspect.signature(Square)) == "(size, *, scale=2)"
    assert registered(Square).distributed_class is DistributedLinear
    assert registered(Square).init_hook(4, scale=1) == ((4, 4), {})
    assert registered(Special) is None
    assert registered(nn.Linear) is None


def test_a_class_of_another_library_can_be_registered_and_unregistered():
    class Theirs(nn.Linear):
        """Cannot be decorated."""

    own = Theirs.__init__
    tp_register_with_module(Theirs, DistributedLinear)
    tp_register_with_module(Theirs, DistributedLinear, return_hook=abs)
    assert Theirs(2, 3).__dict__[ARGUMENTS] == ((2, 3), {})
    assert registered(Theirs).return_hook is abs
    unregister(Theirs)
    assert Theirs.__init__ is own
    assert registered(Theirs) is None


def test_a_class_that_is_no_module_is_refused():
    error = raised(lambda: tp_register(nn.Linear)(nn.Linear))
    assert isinstance(error, TypeError)
    assert "no subclass of smp.nn.DistributedModule" in str(error)
    assert "no subclass of torch.nn.Module" in str(raised(lambda: tp_register(DistributedLinear)(dict)))


def test_settings_are_parsed_and_unknown_ones_refused():
    assert read_settings({"use_alibi": True, "fused_softmax": True}, "Layer") == LayerSettings(use_alibi=True)
    assert "Layer got unknown arguments fused, soft" in str(
        raised(lambda: read_settings({"soft": 1, "fused": 2}, "Layer"))
    )
    assert "needs parallel_residual" in str(raised(lambda: LayerSettings(shared_layernorm=True)))


def test_settings_without_effect_are_logged_once():
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("clary.smp").addHandler(handler)
    for _ in range(2):
        assert read_settings({"_precise": True, "zero_init": 1, "use_alibi": True}, "Layer").use_alibi
    logging.getLogger("clary.smp").removeHandler(handler)
    assert lines == ["Layer: keywords without effect here: _precise, zero_init"]


def layer_state(num_heads, size):
    generator = torch.Generator().manual_seed(1)
    width = num_heads * size
    shapes = {f"attention.{name}.weight": (width, 6) for name in ("query", "key", "value")}
    shapes |= {f"attention.{name}.bias": (width,) for name in ("query", "key", "value")}
    return {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}


def test_fused_weights_have_the_layout_of_their_models():
    ours = {f"transformer.seq_layers.1.{key}": value for key, value in layer_state(2, 3).items()}
    query, key, value = (
        ours[f"transformer.seq_layers.1.attention.{name}.weight"] for name in ("query", "key", "value")
    )
    gpt2 = TRANSLATION.to_theirs(ours)
    assert torch.equal(gpt2["transformer.h.1.attn.c_attn.weight"], torch.cat([query, key, value]).t())
    neox = neox_to_theirs(ours, num_attention_heads=2)
    by_head = torch.cat([query[:3], key[:3], value[:3], query[3:], key[3:], value[3:]])
    assert torch.equal(neox["gpt_neox.layers.1.attention.query_key_value.weight"], by_head)
    for back in (TRANSLATION.to_ours(gpt2), neox_to_ours(neox, num_attention_heads=2)):
        assert set(back) == set(ours)
        assert all(torch.equal(back[name], ours[name]) for name in ours)


def test_prefixes_and_unknown_names_are_kept():
    ours = {f"model.transformer.seq_layers.0.{key}": value for key, value in layer_state(2, 3).items()}
    ours |= {
        "model.word_embedding.weight": torch.ones(1),
        "model.h.0.score.weight": torch.ones(2),
        "cls": torch.ones(3),
    }
    theirs = TRANSLATION.to_theirs(ours)
    assert set(theirs) == {
        "model.transformer.h.0.attn.c_attn.weight",
        "model.transformer.h.0.attn.c_attn.bias",
        "model.transformer.wte.weight",
        "model.h.0.score.weight",
        "cls",
    }
    assert set(TRANSLATION.to_ours(theirs)) == set(ours)


def test_a_state_without_the_number_of_heads_is_refused():
    error = raised(lambda: neox_to_theirs(layer_with_prefix()))
    assert isinstance(error, ValueError)
    assert "num_attention_heads must say" in str(error)


def layer_with_prefix():
    return {f"transformer.seq_layers.0.{key}": value for key, value in layer_state(2, 3).items()}
