"""Models of transformers in pipelines, on two ranks; run by test_smp_huggingface if transformers is installed."""

import smdistributed.modelparallel.torch as smp
import torch
from smp_core_program import start
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel


def gpt2():
    torch.manual_seed(3)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=200, n_positions=32, n_embd=64, n_layer=4, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
    )


def bert():
    torch.manual_seed(3)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=200,
            hidden_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=32,
            hidden_dropout_prob=0,
            attention_probs_dropout_prob=0,
            num_labels=3,
        )
    )


def batch_of(make, number):
    generator = torch.Generator().manual_seed(number)
    ids = torch.randint(0, 200, (8, 16), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 10:] = 0
    labels = ids if make is gpt2 else torch.randint(0, 3, (8,), generator=generator)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@smp.step()
def train_step(model, inputs):
    outputs = model(**inputs)
    model.backward(outputs["loss"])
    return outputs


def alone(make):
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for number in range(3):
        inputs = batch_of(make, number)
        optimizer.zero_grad()
        pieces = [{name: value.chunk(4)[place] for name, value in inputs.items()} for place in range(4)]
        loss = torch.stack([model(**piece).loss for piece in pieces]).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def check(make):
    start(partitions=2, microbatches=4)
    model = smp.DistributedModel(make())
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
    losses = []
    for number in range(3):
        optimizer.zero_grad()
        outputs = train_step(model, batch_of(make, number))
        assert type(outputs).__name__.endswith("Output") or "logits" in outputs
        assert outputs["logits"].concat().shape[0] == 8
        losses.append(outputs["loss"].reduce_mean().item())
        optimizer.step()
    expected, state = alone(make)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), atol=1e-4, rtol=1e-4)
    gathered = model.state_dict()
    assert set(gathered) == set(state)
    for name, value in state.items():
        torch.testing.assert_close(
            gathered[name], value, atol=2e-3, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )
    sizes = smp.allgather(sum(one.numel() for one in model.local_parameters()), smp.PP_GROUP)
    assert min(sizes) > 0.25 * sum(sizes), sizes


def test_gpt2_in_a_pipeline_of_two_trains_as_it_does_alone(rank, size):
    check(gpt2)


def test_bert_in_a_pipeline_of_two_trains_as_it_does_alone(rank, size):
    check(bert)


def test_gpt2_is_distributed_over_a_tensor_group_of_one_rank(rank, size):
    start(ddp=True)
    with smp.model_creation(tensor_parallelism=True):
        inner = gpt2()
    inner = smp.DistributedModel(inner).get_module()
    assert isinstance(inner, smp.nn.DistributedTransformerLMHead)
    assert len(inner.transformer.seq_layers) == 4


def after_three_steps(*, is_by_class, **keys):
    """Train for three steps; exclude layer norms from weight decay by class or by name, as public scripts do."""
    start(ddp=True, **keys)
    with smp.model_creation(tensor_parallelism=True):
        inner = gpt2()
    torch.manual_seed(4)
    model = smp.DistributedModel(inner)
    layers = model.get_module().transformer.seq_layers
    smp.set_activation_checkpointing(layers, strategy="each")
    norms = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, smp.nn.FusedLayerNorm)
        for parameter in module.parameters(recurse=False)
    }
    is_spared = {
        name: id(one) in norms if is_by_class else "layernorm" in name for name, one in layers.named_parameters()
    }
    assert sum(is_spared.values()) == 4 * len(layers), "two norms a layer"
    groups = [
        {"params": [one for name, one in layers.named_parameters() if is_spared[name] == flag], "weight_decay": decay}
        for flag, decay in ((True, 0.0), (False, 5.0))
    ]
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(groups, lr=0.01))
    losses = []
    for number in range(3):
        optimizer.zero_grad()
        losses.append(train_step(model, batch_of(gpt2, number))["loss"].reduce_mean().item())
        optimizer.step()
    return losses


def test_excluding_layer_norms_from_decay_by_class_or_by_name_trains_alike(rank, size):
    for degree in (1, 2):
        keys = {"tensor_parallel_degree": degree, "prescaled_batch": degree > 1}
        by_class, by_name = (after_three_steps(is_by_class=flag, **keys) for flag in (True, False))
        assert by_class == by_name, (degree, by_class, by_name)
        assert by_class[-1] < by_class[0]
