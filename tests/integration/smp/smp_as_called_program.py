"""Calls of SMP v1 in public scripts that its documentation does not describe; run by test_smp_as_called on 2 ranks."""

import copy
import dataclasses
import importlib
import unittest

import smdistributed.modelparallel.torch as smp
import torch
from smdistributed.modelparallel.test.torch.utils import dump_model, verify
from smdistributed.modelparallel.torch.nn import FusedLayerNorm
from smdistributed.modelparallel.torch.nn.huggingface import bert, gpt2, gptj, gptneo, gptneox, roberta
from smdistributed.modelparallel.torch.state_mod import state as smp_state
from smdistributed.modelparallel.torch.utils import get_distribution_axis, rmsg
from smp_core_program import failure_of, start, train_step
from smp_mistakes_program import wrapped
from smp_models import SharedPerceptron, batch_of, make
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType

from clary.train.parallel.fsdp import session as tsm
from clary.train.parallel.fsdp.checkpoint.local_state import SMStateDictType, sm_state_dict_type
from clary.train.parallel.fsdp.checkpoint.saving_interval import Interval as _Interval
from clary.train.parallel.fsdp.checkpoint.saving_interval import compute_auto_checkpoint_interval
from clary.train.parallel.fsdp.state import state as tsm_state

LENGTH, VOCABULARY = 6, 20


class Language(nn.Module):
    """Token ids in, logits out; the transformer is one of `smp.nn`."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 8)
        self.transformer = smp.nn.DistributedTransformer(
            num_layers=3,
            num_attention_heads=2,
            attention_head_size=4,
            hidden_size=8,
            intermediate_size=16,
            attention_dropout_prob=0.0,
            hidden_dropout_prob=0.0,
            causal_mask_size=LENGTH,
        )
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, ids):
        hidden = self.transformer((self.words(ids), torch.zeros(len(ids), 1, 1, LENGTH)))[0]
        return self.head(hidden)


@smp.step
def language_step(model, ids):
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    model.backward(loss)
    return loss


def losses_of(strategy, **keys):
    """Train for three steps; without activation checkpointing if `strategy` is None."""
    start(ddp=True, microbatches=2, prescaled_batch=True, **keys)
    torch.manual_seed(4)
    model = smp.DistributedModel(Language())
    if strategy is not None:
        smp.set_activation_checkpointing(model.get_module().transformer.seq_layers, strategy=strategy)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
    torch.manual_seed(6)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        ids = torch.randint(VOCABULARY, (4, LENGTH))
        found.append(language_step(model, ids).reduce_mean().item())
        optimizer.step()
    return found


def test_layers_of_a_transformer_are_checkpointed_by_their_sequence(rank, size):
    for keys in (
        {"tensor_parallel_degree": 2},
        {"partitions": 2},
        {"sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 10},
    ):
        expected = losses_of(None, **keys)
        for strategy in ("each", "contiguous", "group_2"):
            assert losses_of(strategy, **keys) == expected, (keys, strategy)


def test_modules_are_distributed_over_a_tensor_group_of_one_rank(rank, size):
    start(ddp=True)
    with smp.model_creation(tensor_parallelism=True):
        module = nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY))
    plain = nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY))
    model = smp.DistributedModel(module)
    assert [type(one) for one in model.get_module()] == [smp.nn.DistributedEmbedding, smp.nn.DistributedLinear]
    model.load_state_dict(plain.state_dict())
    ids = torch.arange(VOCABULARY)[None]
    assert torch.equal(model(ids), plain(ids))


def test_weight_decay_spares_the_layer_norms_of_distributed_layers(rank, size):
    start(ddp=True, tensor_parallel_degree=2)
    module = smp.DistributedModel(Language()).get_module()
    norms = [one for one in module.modules() if isinstance(one, FusedLayerNorm)]
    assert len(norms) == 6, "two a layer"
    assert all(isinstance(one, nn.LayerNorm) and one.normalized_shape == (8,) for one in norms)
    spared = {id(parameter) for one in norms for parameter in one.parameters(recurse=False)}
    named = {id(parameter) for name, parameter in module.named_parameters() if "layernorm" in name}
    assert spared == named


def test_numbers_and_names_lead_from_parameters_to_their_masters(rank, size):
    for keys in ({}, {"fp16": True}):
        start(ddp=True, tensor_parallel_degree=2, prescaled_batch=True, **keys)
        model = smp.DistributedModel(Language())
        groups = [{"params": [one for one in model.parameters() if one.dim() == places]} for places in (1, 2)]
        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(groups, lr=0.05))
        language_step(model, torch.zeros(4, LENGTH, dtype=torch.long))
        optimizer.step()
        numbers = optimizer.param_name_to_index()
        names = smp_state.param_index_to_name_tp_group[smp.tp_rank()]
        assert {names[number]: number for number in names} == numbers
        assert smp_state.param_name_to_index_tp_group[1 - smp.tp_rank()] == numbers
        assert set(numbers) == {name for name, _ in model.virtual_named_parameters()}
        assert not optimizer.redefined_params
        stepped = [one for group in optimizer.param_groups for one in group["params"]]
        ids, local = optimizer._param_id_to_index(), optimizer._param_index_to_param_local()
        for name, parameter in model.named_parameters():
            number = numbers[name]
            master = stepped[number]
            assert ids[id(parameter)] == ids[id(master)] == number
            assert local[number] is parameter
            torch.testing.assert_close(master.detach(), parameter.detach().float(), atol=1e-3, rtol=1e-3)
            axis = optimizer.master_distribution_axis[id(master)]
            assert axis == get_distribution_axis(parameter)
            assert (axis is None) == (not model.is_distributed_parameter(parameter))
        assert set(optimizer.state_dict()["state"]) == set(numbers.values())
    assert get_distribution_axis(None) is None
    assert rmsg("loaded") == f"rank {rank}: loaded"


def test_parameter_groups_added_before_the_first_step_of_a_pipeline_are_numbered(rank, size):
    """The first step replaces parameters by masters; the parameters' names must then lead to the masters."""
    start(ddp=True, partitions=2, microbatches=2, prescaled_batch=True, fp16=True)
    model = smp.DistributedModel(make(SharedPerceptron))
    first, *others = model.parameters()
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW([first], lr=0.05))
    optimizer.add_param_group({"params": others})
    train_step(model, *batch_of(SharedPerceptron, 0))
    numbers, ids = optimizer.param_name_to_index(), optimizer._param_id_to_index()
    assert numbers == {name: number for number, (name, _) in enumerate(model.named_parameters())}
    stepped = [one for group in optimizer.param_groups for one in group["params"]]
    assert [ids[id(one)] for one in stepped] == list(range(len(numbers)))
    local = optimizer._param_index_to_param_local()
    assert [id(one) for one in local.values()] == [id(one) for one in model.local_parameters()]
    assert all(stepped[number].dtype is torch.float32 for number in local)


def test_translations_have_the_names_and_arguments_that_scripts_give_them(rank, size):
    """Second arguments are sequence lengths; a state of transformers lacks the mask that our modules would need."""
    block = {f"{name}.{kind}": torch.randn(4, 4) for name in ("ln_1", "attn.c_proj") for kind in ("weight", "bias")}
    whole = {f"transformer.h.0.{name}": value for name, value in block.items()}
    for translate in (
        gpt2.translate_hf_state_dict_to_smdistributed,
        gpt2.translate_hf_state_dict_to_smdistributed_gpt2,
    ):
        ours = translate(whole, 16)
        assert ours.keys() == translate(whole, max_seq_len=16).keys() == translate(whole).keys()
    theirs = gpt2.translate_state_dict_to_hf_gpt2(ours, 16)
    assert theirs.pop("transformer.h.0.attn.bias").shape == (1, 1, 16, 16)
    theirs.pop("transformer.h.0.attn.masked_bias")
    assert all(torch.equal(value, whole[name]) for name, value in theirs.items())
    in_place = gpt2.translate_hf_block_state_dict_to_smdistributed(
        {**whole, "transformer.wte.weight": torch.ones(2)}, 16
    )
    assert "transformer.h.0.attention.dense.weight" in in_place
    assert "transformer.wte.weight" in in_place
    assert whole.keys() < gpt2.translate_layer_state_dict_to_hf_gpt2_block(in_place).keys()
    back = gpt2.translate_layer_state_dict_to_hf_gpt2_block(
        gpt2.translate_hf_block_state_dict_to_smdistributed(block), 16
    )
    assert back.pop("attn.bias").shape == (1, 1, 16, 16)
    back.pop("attn.masked_bias")
    assert all(torch.equal(value, block[name]) for name, value in back.items())
    names = ("translate_hf_gptj_state_dict_to_smdistributed", "translate_hf_state_dict_to_smdistributed_gptj")
    for name in (*names, "translate_hf_gptj_state_dict_to_smdistributed_gptj"):
        assert "transformer.seq_layers.0.attention.query.weight" in getattr(gptj, name)(
            {"transformer.h.0.attn.q_proj.weight": torch.ones(2, 2)}, 16
        )
    for module, name in ((bert, "bert"), (roberta, "roberta"), (gptneo, "gptneo"), (gptneox, "gptneox")):
        assert getattr(module, f"translate_state_dict_to_hf_{name}")({}, 16) == {}
        assert getattr(module, f"translate_hf_state_dict_to_smdistributed_{name}")({}, 16) == {}


def test_dump_model_of_smps_own_tests_names_the_call_to_use_instead(rank, size):
    assert verify.dump_model is dump_model
    assert "smp.save_checkpoint" in str(failure_of(lambda: dump_model(nn.Linear(2, 2), "file")))


def test_shards_are_clipped_to_the_norm_that_a_script_asks_for(rank, size):
    """Public scripts with fp16 call `clip_master_grads` at every degree of shards."""
    found = []
    for keys in ({}, {"sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 10}):
        for fp16 in (False, True):
            model, optimizer = wrapped(fp16=fp16, **keys)
            norms = []
            for number in range(3):
                optimizer.zero_grad()
                train_step(model, *batch_of(SharedPerceptron, number))
                norms.append(optimizer.clip_master_grads(0.05))
                optimizer.step()
            assert all(norm > 0.1 for norm in norms), norms
            found.append((torch.tensor(norms), {name: value.float() for name, value in model.state_dict().items()}))
    for whole, sharded in zip(found[:2], found[2:], strict=True):
        torch.testing.assert_close(sharded, whole, atol=2e-3, rtol=2e-3)
    assert torch.equal(found[0][0].sign(), torch.ones(3))


def test_older_scripts_reach_the_model_past_layers_around_it(rank, size):
    start(ddp=True, tensor_parallel_degree=2)
    model = smp.DistributedModel(Language())
    inner = model.get_module()
    for reached in (model.module, model.module.module, model.module.module.module):
        assert reached.transformer.seq_layers is inner.transformer.seq_layers
        assert isinstance(reached, Language)
        assert reached == inner
        assert [name for name, _ in reached.named_parameters()] == [name for name, _ in inner.named_parameters()]
    assert model.module.module.module is inner
    assert not hasattr(inner, "module"), "who unwraps while there is a module ends"
    model.module.note = 3
    assert inner.note == 3
    assert [name for name, _ in model.named_parameters()] == [f"module.{name}" for name, _ in inner.named_parameters()]
    assert "pass what smp.DistributedModel returned" in str(failure_of(lambda: language_step(model.module, None)))
    model.eval()
    ids = torch.zeros(2, LENGTH, dtype=torch.long)
    assert torch.equal(model.module(ids), inner(ids))
    assert type(copy.deepcopy(model.module)) is Language


def test_sm_state_dict_type_accepts_torchs_state_dict_types(rank, size):
    smp.shutdown()
    tsm.init({})
    plain = make(SharedPerceptron)
    model = FullyShardedDataParallel(copy.deepcopy(plain), device_id=torch.device("cpu"))
    config = FullStateDictConfig(rank0_only=True, offload_to_cpu=False)
    with sm_state_dict_type(model, StateDictType.FULL_STATE_DICT, state_dict_config=config):
        state = model.state_dict()
    expected = plain.state_dict() if rank == 0 else {}
    assert state.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in state.items())

    def with_a_configuration():
        with sm_state_dict_type(model, SMStateDictType.SM_LOCAL_STATE_DICT, config):
            pass

    assert "local states take no configuration" in str(failure_of(with_a_configuration))
    tsm_state.reset()


def test_states_are_saved_and_loaded_by_the_method_names_before_smp_1_10(rank, size):
    start(ddp=True, microbatches=2, shard_optimizer_state=True)
    model = smp.DistributedModel(make(SharedPerceptron))
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05))
    train_step(model, *batch_of(SharedPerceptron, 0))
    optimizer.step()
    with unittest.TestCase().assertLogs("clary.smp", "WARNING") as told:
        saved = copy.deepcopy(optimizer.save_optimizer_backcompat(gather_if_shard=1))
    assert "gather_if_shard=True has no effect" in told.output[0]
    with unittest.TestCase().assertNoLogs("clary.smp"):
        own = optimizer.local_state_dict()
        optimizer.local_state_dict(gather_if_shard=False)
    assert saved.keys() == own.keys()
    train_step(model, *batch_of(SharedPerceptron, 1))
    optimizer.step()
    optimizer.load_state_dict(saved, 1)
    optimizer.zero_grad(set_grads_to_None=True)
    assert all(one.grad is None for one in model.parameters())
    optimizer.load_optimizer_backcompat(saved, 1)
    torch.testing.assert_close(optimizer.local_state_dict(), saved, rtol=0, atol=0)


def test_importing_modules_named_like_functions_does_not_replace_the_functions(rank, size):
    start(ddp=True)
    decorator, state = smp.step, smp.state
    for name in ("core", "state", "step"):
        importlib.import_module(f"smdistributed.modelparallel.torch.{name}")
    from smdistributed.modelparallel.torch import core
    from smdistributed.modelparallel.torch import step as of_the_package
    from smdistributed.modelparallel.torch.state import state as of_its_module
    from smdistributed.modelparallel.torch.step import StepOutput
    from smdistributed.modelparallel.torch.step import step as of_the_module

    assert smp.step is decorator is of_the_package is of_the_module
    assert smp.state is state is of_its_module
    assert isinstance(smp.step(lambda x: x + 1)(torch.zeros(2)), StepOutput)
    assert (smp.core.rank(), core.size(), core.tp_rank(), core.dp_size()) == (rank, size, 0, size)
    smp.core.barrier()


def test_keys_with_an_underscore_are_logged_as_without_effect(rank, size):
    with unittest.TestCase().assertLogs("clary.smp", "WARNING") as told:
        start(ddp=True, _match_weights=True, _fp32_grad_accumulation=True, checkpoint_attentions=True)
    (line,) = told.output
    expected = "keys without effect here: checkpoint_attentions, _match_weights, _fp32_grad_accumulation"
    assert line.endswith(expected), line
    assert smp.state.cfg._match_weights is True


def test_ranks_agree_on_the_interval_of_saves(rank, size):
    """The interval covers the slowest write of any rank in steps of the fastest rank."""
    found = compute_auto_checkpoint_interval([2.0 + rank, 3.0], [4.0, 5.0], [0.5 + rank], [1.0, 9.0 * (rank + 1)])
    assert found == _Interval(9, 2.0, 5.0, size - 0.5, 9.0 * size)
    assert _Interval(**dataclasses.asdict(found)) == found
    assert _Interval().interval < 1, "callbacks take that for not known yet"
    assert compute_auto_checkpoint_interval([2.0], [2.0], [0.0], [0.0]).interval == 1
    for steps in ([], [0.0], [float("nan")]):
        given = steps if rank == 0 else [1.0]
        told = failure_of(lambda given=given: compute_auto_checkpoint_interval(given, [1.0], [1.0], [1.0]))
        assert "step_durations" in str(told), told


def test_gradients_are_averaged_once_before_the_optimizer_steps(rank, size):
    found = []
    for calls, passes in ((0, 1), (1, 1), (2, 1), (0, 2), (1, 2)):
        start(horovod=True)
        failure = failure_of(smp.hvd_average_grads)
        assert "there is no smp.DistributedModel" in str(failure), failure
        torch.manual_seed(4)
        model = smp.DistributedModel(nn.Linear(3, 2), overlapping_allreduce=False, backward_passes_per_step=passes)
        optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        before = model.get_module().weight.detach().clone()
        mean_step(model, torch.full((2, 3), 1.0 + rank))
        for _ in range(calls):
            smp.hvd_average_grads()
        if calls:
            assert model.get_module().bias.grad.tolist() == [1.0, 1.0]
            torch.testing.assert_close(model.get_module().weight.grad, torch.full((2, 3), (1.0 + size) / 2))
        optimizer.step()
        found.append(before - model.get_module().weight.detach())
    assert all(torch.equal(one, found[0]) for one in found)


@smp.step
def mean_step(model, inputs):
    loss = model(inputs).mean(0).sum()
    model.backward(loss)
    return loss
