"""Tensor-parallel models of transformers compared with the unsharded models. Functions `test_...(rank, size)`.

Weights and gradients are converted by the translations of checkpoints, so that every comparison tests these too. Models
are tiny and built from configurations. See `torch_ranks`.
"""

import copy
import itertools
from contextlib import contextmanager

import torch
import torch.distributed as dist
import transformers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    GPTJModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GPTNeoModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GPTNeoXModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    OPTConfig,
    OPTForCausalLM,
    OPTForSequenceClassification,
    RobertaConfig,
    RobertaForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)
from whole_states import gather_state_dict

from clary.train.parallel import runtime
from clary.train.parallel.configuration import read_configuration
from clary.train.parallel.layout.mesh import Along
from clary.train.parallel.tensor import collectives
from clary.train.parallel.tensor.collectives import TensorGroup
from clary.train.parallel.tensor.huggingface.reader import block_hooks, translators
from clary.train.parallel.tensor.registry import (
    set_tensor_parallelism,
    tensor_parallelism,
    tp_register_with_module,
    unregister,
)
from clary.train.parallel.tensor.replacement import replace_modules
from clary.train.parallel.tensor.slices import cut_state_dict, slices_of
from clary.train.parallel.tensor.transformer import DistributedTransformerLayer

N, S, WORDS = 3, 6, 50
GPT2 = GPT2Config(
    vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
)
GPTJ = GPTJConfig(vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=2, n_head=4, rotary_dim=4)
NEO = GPTNeoConfig(
    vocab_size=WORDS,
    max_position_embeddings=16,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    attention_types=[[["global", "local"], 1]],
    window_size=3,
)
NEOX_ROTATION = (
    {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
    if int(transformers.__version__.partition(".")[0]) >= 5
    else {"rotary_pct": 0.5, "rotary_emb_base": 10000}
)
NEOX = GPTNeoXConfig(
    vocab_size=WORDS,
    max_position_embeddings=16,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    **NEOX_ROTATION,
)
ENCODER = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 32,
}


@contextmanager
def parallel(size, **keys):
    runtime.initialize(read_configuration({"tensor_parallel_degree": size, "ddp": True, **keys}))
    try:
        yield
    finally:
        runtime.reset()


def layouts():
    return [
        {"optimize": optimize, "prescaled_batch": prescaled}
        for optimize, prescaled in itertools.product(("memory", "speed"), (True, False))
    ]


def tensor_group():
    groups = runtime.current().groups
    return TensorGroup(groups.process_group(Along.TP), groups.group_rank(Along.TP), groups.size(Along.TP))


def batch(seed):
    """Return a batch whose last row is padded on the right."""
    ids = torch.randint(3, WORDS, (N, S), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[-1, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def plain_model(model_class, config):
    torch.manual_seed(1)
    model = model_class(copy.deepcopy(config))
    with torch.no_grad():
        for parameter in model.parameters():  # initial zeros and ones would hide errors
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def distribute(plain, **keywords):
    """Return a distributed copy with new weights, and the record of replacements."""
    model = copy.deepcopy(plain)
    set_tensor_parallelism(model, **keywords)
    done = replace_modules(model)
    return done.root, done


def compare(plain, translate, *, replaced, make_batch=batch, loss_of=None):
    """Check loss, logits and gradients on all layouts.

    replaced: pairs of replaced class and its distributed class.
    translate: functions from Clary's state to that of transformers, and back.
    """
    to_theirs, to_ours = translate
    loss_of = loss_of or (lambda output: output.loss)
    for keys in layouts():
        with parallel(dist.get_world_size(), **keys):
            group = tensor_group()
            model, done = distribute(plain)
            assert {(one.module_class, one.distributed_class) for one in done.changes if one.reason is None} == replaced
            model.load_state_dict(cut_state_dict(model, to_ours(plain.state_dict())))
            whole = to_theirs(gather_state_dict(model, group))
            state = dict(plain.named_parameters(remove_duplicate=False))
            masks = plain.state_dict().keys() - state.keys()  # buffers of versions before 5
            assert whole.keys() - masks == state.keys()
            assert all(torch.equal(whole[key], value) for key, value in state.items())
            seeds = [7] if keys["prescaled_batch"] else range(group.size)
            own = 0 if keys["prescaled_batch"] else group.rank
            plain.zero_grad()
            expected = [plain(**make_batch(seed)) for seed in seeds]
            (sum(map(loss_of, expected)) / len(expected)).backward()
            inputs = make_batch(seeds[own])
            output = model(**inputs)
            loss_of(output).backward()
            assert type(output) is type(expected[own])
            assert_near(loss_of(output), loss_of(expected[own]), "loss")
            if "logits" in output and output.logits.dim() == 3:
                counts = inputs["attention_mask"].bool()
                assert_near(output.logits[counts], expected[own].logits[counts], "logits")
            wanted = {
                name: parameter.grad
                for name, parameter in plain.named_parameters(remove_duplicate=False)
                if parameter.grad is not None
            }
            got = to_theirs(whole_gradients(model))
            assert set(got) == set(wanted), set(got) ^ set(wanted)
            for name, gradient in got.items():
                assert_near(gradient, wanted[name], f"gradient of {name}")


def whole_gradients(model):
    """Return unsharded gradients, averaged over the global batch by the group that must reduce each."""
    group, pieces = tensor_group(), slices_of(model)
    inside = {
        id(parameter)
        for module in model.modules()
        if getattr(module, "is_distributed", False)
        for parameter in module.parameters()
    }
    found = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.grad is None:
            continue
        gradient = parameter.grad.clone()
        if id(parameter) not in inside:  # reduced over dp, whose ranks are the tensor ranks here
            dist.all_reduce(gradient, group=group.process_group)
            gradient /= group.size
        found[name] = collectives.gather_whole(gradient, group, pieces[name].dimension) if name in pieces else gradient
    return found


def assert_near(got, wanted, what):
    assert got.shape == wanted.shape, f"{what}: {tuple(got.shape)}, expected {tuple(wanted.shape)}"
    worst = (got - wanted).abs().max().item()
    assert torch.allclose(got, wanted, rtol=1e-4, atol=1e-5), f"{what}: off by {worst}, of {wanted.abs().max().item()}"


UNCHANGED = (lambda state: state, lambda state: state)
MATRICES = {("Linear", "DistributedLinear"), ("Embedding", "DistributedEmbedding")}
GPT2_TRANSLATION = translators("gpt2")
NEO_TRANSLATION = translators("gpt_neo")
NEOX_TRANSLATION = translators("gpt_neox")
GPTJ_TRANSLATION = translators("gptj")


def model_becomes(name):
    return {(name, "DistributedTransformerLMHead")}


def test_gpt2(rank, size):
    plain = plain_model(GPT2LMHeadModel, GPT2)
    compare(plain, GPT2_TRANSLATION, replaced=model_becomes("GPT2LMHeadModel"))


def test_gpt2_with_scores_scaled_by_layer(rank, size):
    config = copy.deepcopy(GPT2)
    config.scale_attn_by_inverse_layer_idx = True
    config._attn_implementation = "eager"  # transformers 4.46 omits the scale in its other attention implementations
    config.tie_word_embeddings = False
    plain = plain_model(GPT2LMHeadModel, config)
    compare(plain, GPT2_TRANSLATION, replaced=model_becomes("GPT2LMHeadModel"))


def test_gpt_neo(rank, size):
    plain = plain_model(GPTNeoForCausalLM, NEO)
    compare(plain, NEO_TRANSLATION, replaced=model_becomes("GPTNeoForCausalLM"))


def test_gpt_neox(rank, size):
    for is_parallel in (True, False):
        config = copy.deepcopy(NEOX)
        config.use_parallel_residual = is_parallel
        plain = plain_model(GPTNeoXForCausalLM, config)
        compare(plain, NEOX_TRANSLATION, replaced=model_becomes("GPTNeoXForCausalLM"))


def test_gptj(rank, size):
    plain = plain_model(GPTJForCausalLM, GPTJ)
    compare(plain, GPTJ_TRANSLATION, replaced=model_becomes("GPTJForCausalLM"))


def test_bert(rank, size):
    """The encoder is replaced, and those layers around it that are supported and not tied."""
    compare(
        plain_model(BertForMaskedLM, BertConfig(**ENCODER)),
        translators("bert"),
        replaced={
            ("BertEncoder", "DistributedTransformer"),
            ("Embedding", "DistributedEmbedding"),  # embeddings of positions and token types; that of words is tied
            ("Linear", "DistributedLinear"),
        },
    )


def test_roberta(rank, size):
    compare(
        plain_model(RobertaForMaskedLM, RobertaConfig(**ENCODER)),
        translators("roberta"),
        replaced={
            ("RobertaEncoder", "DistributedTransformer"),
            ("Embedding", "DistributedEmbedding"),
            ("Linear", "DistributedLinear"),
        },
    )


def test_eager_attention_masks(rank, size):
    config = BertConfig(**ENCODER)
    config._attn_implementation = "eager"
    compare(
        plain_model(BertForMaskedLM, config),
        translators("bert"),
        replaced={
            ("BertEncoder", "DistributedTransformer"),
            ("Embedding", "DistributedEmbedding"),
            ("Linear", "DistributedLinear"),
        },
    )


def test_blocks_of_other_models(rank, size):
    """In models other than causal language models only the blocks are replaced."""

    def shifted(seed):
        made = batch(seed)
        del made["labels"]
        return made | {"position_ids": (torch.arange(S) + 2).unsqueeze(0)}

    def loss_of(output):
        hidden = output.last_hidden_state[:-1]  # the last row is padded
        return (hidden * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(3))).mean()

    for model_class, config, translation, block in (
        (GPTNeoModel, NEO, NEO_TRANSLATION, "GPTNeoBlock"),
        (GPTNeoXModel, NEOX, NEOX_TRANSLATION, "GPTNeoXLayer"),
        (GPTJModel, GPTJ, GPTJ_TRANSLATION, "GPTJBlock"),
    ):
        plain = plain_model(model_class, config)
        to_theirs, to_ours = translation

        def blocks(state, to_ours=to_ours, base="gpt_neox." if block == "GPTNeoXLayer" else "transformer.", at=block):
            """Return the state of replaced blocks under the model's own names."""
            ours = to_ours({f"{base}{key}": value for key, value in state.items()})
            names = {"word_embedding": "embed_in" if at == "GPTNeoXLayer" else "wte", "position_embedding": "wpe"}
            found = {}
            for key, value in ours.items():
                key = key.replace("transformer.seq_layers.", "layers." if at == "GPTNeoXLayer" else "h.")
                key = key.replace("transformer.layernorm", "final_layer_norm" if at == "GPTNeoXLayer" else "ln_f")
                first, _, rest = key.partition(".")
                found[f"{names.get(first, first)}.{rest}"] = value
            return found

        compare(
            plain,
            (to_theirs, blocks),
            replaced={(block, "DistributedTransformerLayer"), ("Embedding", "DistributedEmbedding")},
            make_batch=shifted,
            loss_of=loss_of,
        )


def test_blocks_of_a_classifier(rank, size):
    config = copy.deepcopy(GPT2)
    config.pad_token_id, config.num_labels = 0, 2
    plain = plain_model(GPT2ForSequenceClassification, config)

    def labelled(seed):
        made = batch(seed)
        return made | {"labels": torch.arange(N) % 2}

    def to_ours(state):
        ours = translators("gpt2")[1](state)
        back = {"word_embedding.": "transformer.wte.", "position_embedding.": "transformer.wpe."}
        back |= {"transformer.seq_layers.": "transformer.h.", "transformer.layernorm.": "transformer.ln_f."}
        return {
            next((key.replace(ours, theirs) for ours, theirs in back.items() if key.startswith(ours)), key): value
            for key, value in ours.items()
        }

    compare(
        plain,
        (translators("gpt2")[0], to_ours),
        replaced={
            ("GPT2Block", "DistributedTransformerLayer"),
            ("Embedding", "DistributedEmbedding"),
            ("Linear", "DistributedLinear"),
        },
        make_batch=labelled,
    )


OPT = OPTConfig(
    vocab_size=WORDS,
    hidden_size=32,
    word_embed_proj_dim=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    ffn_dim=64,
    max_position_embeddings=16,
    dropout=0.0,
    attention_dropout=0.0,
)


def test_opt(rank, size):
    """Only layers are replaced, because OPT counts positions by its mask, unlike Clary's whole models."""
    replaced = {("OPTDecoderLayer", "DistributedTransformerLayer")}
    compare(plain_model(OPTForCausalLM, OPT), translators("opt"), replaced=replaced)


def test_opt_with_another_head(rank, size):
    def labelled(seed):
        return batch(seed) | {"labels": torch.arange(N) % 2}

    compare(
        plain_model(OPTForSequenceClassification, OPT),
        translators("opt"),
        replaced={
            ("OPTDecoderLayer", "DistributedTransformerLayer"),
            ("Embedding", "DistributedEmbedding"),
            ("Linear", "DistributedLinear"),
        },
        make_batch=labelled,
    )


def test_opt_with_post_normalisation_is_not_replaced(rank, size):
    config = copy.deepcopy(OPT)
    config.do_layer_norm_before = False
    with parallel(size):
        _, done = distribute(plain_model(OPTForCausalLM, config))
        reasons = {one.reason for one in done.changes if one.module_class == "OPTDecoderLayer"}
        assert len(reasons) == 1
        assert "do_layer_norm_before" in reasons.pop()


def test_vit(rank, size):
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=8,
        patch_size=4,
        num_labels=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )

    def images(seed):
        pixels = torch.randn(N, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        return {"pixel_values": pixels, "labels": torch.arange(N) % 2}

    compare(
        plain_model(ViTForImageClassification, config),
        translators("vit"),
        replaced={("ViTLayer", "DistributedTransformerLayer"), ("Linear", "DistributedLinear")},
        make_batch=images,
    )


def test_t5(rank, size):
    """Only single matrices are replaced, because Clary's layers have no learnt relative position biases."""
    config = T5Config(
        vocab_size=WORDS,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        feed_forward_proj="gated-gelu",
        use_cache=False,
    )
    compare(plain_model(T5ForConditionalGeneration, config), UNCHANGED, replaced=MATRICES)


LLAMA = LlamaConfig(
    vocab_size=WORDS,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=16,
    use_cache=False,
)


def test_llama(rank, size):
    replaced = {("LlamaDecoderLayer", "DistributedTransformerLayer"), *MATRICES}  # MATRICES: the head and the embedding
    compare(plain_model(LlamaForCausalLM, LLAMA), translators("llama"), replaced=replaced)


def test_llama_with_biases_and_custom_positions(rank, size):
    config = copy.deepcopy(LLAMA)
    config.attention_bias = config.mlp_bias = True
    positions = torch.tensor([0, 1, 3, 4, 8, 9])

    def loss_of(output):
        hidden = output.last_hidden_state
        return (hidden * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(3))).mean()

    compare(
        plain_model(LlamaModel, config),
        translators("llama"),
        replaced={("LlamaDecoderLayer", "DistributedTransformerLayer"), ("Embedding", "DistributedEmbedding")},
        make_batch=lambda seed: {"input_ids": batch(seed)["input_ids"], "position_ids": positions.unsqueeze(0)},
        loss_of=loss_of,
    )


def test_llamas_beyond_clarys_layers_have_only_their_matrices_sharded(rank, size):
    turned, shared = copy.deepcopy(LLAMA), copy.deepcopy(LLAMA)
    turned.rope_parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    shared.num_key_value_heads = 1
    for config, reason in ((turned, "its rope_type is 'linear'"), (shared, "num_key_value_heads is 1")):
        with parallel(size):
            _, done = distribute(plain_model(LlamaForCausalLM, config))
            reasons = {one.reason for one in done.changes if one.module_class == "LlamaDecoderLayer"}
            assert len(reasons) == 1
            assert reason in reasons.pop()
        compare(plain_model(LlamaForCausalLM, config), UNCHANGED, replaced=MATRICES)


def test_weights_are_kept_on_request(rank, size):
    for model_class, config in (
        (GPT2LMHeadModel, GPT2),
        (GPTNeoForCausalLM, NEO),
        (GPTNeoXForCausalLM, NEOX),
        (GPTJForCausalLM, GPTJ),
        (BertForMaskedLM, BertConfig(**ENCODER)),
        (RobertaForMaskedLM, RobertaConfig(**ENCODER)),
        (GPT2ForSequenceClassification, GPT2Config(**GPT2.to_diff_dict() | {"pad_token_id": 0})),
        (GPTNeoXModel, NEOX),
        (LlamaForCausalLM, LLAMA),
    ):
        plain = plain_model(model_class, config)
        with parallel(size, prescaled_batch=True):
            model = copy.deepcopy(plain)
            set_tensor_parallelism(model)
            done = replace_modules(model, carries_weights=True)
            inputs = batch(7)
            del inputs["labels"]
            with torch.no_grad():
                got, wanted = done.root(**inputs)[0], plain(**inputs)[0]
            if got.shape[:2] == (N, S):
                counts = inputs["attention_mask"].bool()
                got, wanted = got[counts], wanted[counts]
            assert_near(got, wanted, model_class.__name__)
            assert len(done.translations) == 1
            (to_theirs, _) = done.translations[0]
            whole = to_theirs(gather_state_dict(done.root, tensor_group()))
            assert all(torch.equal(whole[key], value) for key, value in plain.state_dict().items())


def test_unsupported_models_are_kept_or_refused_with_a_reason(rank, size):
    with parallel(size):
        odd = copy.deepcopy(GPT2)
        odd.activation_function = "mish"
        _, done = distribute(GPT2LMHeadModel(odd))
        assert "its activation is 'mish'" in str(done.changes[0])
        assert {one.distributed_class for one in done.changes if one.reason is None} == {"DistributedEmbedding"}
        heads = copy.deepcopy(GPT2)
        heads.n_head = 1
        _, done = distribute(GPT2LMHeadModel(heads))
        assert f"num_attention_heads is 1, no multiple of tensor_parallel_degree, which is {size}" in str(
            done.changes[0]
        )
        model, _ = distribute(GPT2LMHeadModel(GPT2))
        blocks, _ = distribute(GPT2ForSequenceClassification(GPT2))
        ids = batch(0)["input_ids"]
        for call, words in (
            (lambda: model(ids, token_type_ids=ids), "GPT2LMHeadModel takes no token_type_ids"),
            (lambda: model(inputs_embeds=torch.zeros(1, 2, 32)), "takes no inputs_embeds"),
            (lambda: model(ids, output_attentions=True), "takes no output_attentions"),
            (lambda: blocks(ids[:1], use_cache=True), " under tensor parallelism: set use_cache=False"),
            (lambda: model(ids, past_key_values=object()), " under tensor parallelism: set use_cache=False"),
        ):
            failure = raised(call)
            assert isinstance(failure, ValueError)
            assert words in str(failure), failure


def raised(call):
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller looks at it
        return error
    raise AssertionError("nothing was raised")


def test_models_created_inside_the_context_use_its_keywords(rank, size):
    with parallel(size, prescaled_batch=True):
        with tensor_parallelism(attention_dropout_prob=0.25, fused_softmax=True, nonsense=3):
            model = GPT2LMHeadModel(GPT2)
        done = replace_modules(model)
        layer = done.root.transformer.seq_layers[0]
        assert layer.attention.attention_dropout_prob == 0.25
        assert layer.output.hidden_dropout_prob == 0.0
        ids = batch(0)["input_ids"]
        output = done.root.eval()(ids, labels=ids, num_items_in_batch=7)
        mean = done.root(ids, labels=ids).loss
        assert_near(output.loss, mean * N * (S - 1) / 7, "loss of a part of a batch")
        assert done.root(ids).loss is None


def test_a_class_registered_late(rank, size):
    with parallel(size):
        model = plain_model(GPT2LMHeadModel, GPT2)
        set_tensor_parallelism(model.transformer.h)
        block_class = type(model.transformer.h[0])
        tp_register_with_module(block_class, DistributedTransformerLayer, *block_hooks("gpt2"))
        try:
            changes = replace_modules(model).changes
        finally:
            unregister(block_class)
        assert [change.reason for change in changes] == [None, None]
        assert isinstance(model.transformer.h[1], DistributedTransformerLayer)
        ids = batch(0)["input_ids"]
        model(ids, labels=ids).loss.backward()


def test_causal_mask_buffers_are_added_if_their_length_is_given(rank, size):
    plain = plain_model(GPT2LMHeadModel, GPT2)
    ours = translators("gpt2")[1](plain.state_dict())
    old = translators("gpt2")[0](ours, 4)
    assert old["transformer.h.1.attn.bias"].tolist() == [[[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]]]
    assert set(old) - set(plain.state_dict()) == {
        f"transformer.h.{layer}.attn.{name}" for layer in (0, 1) for name in ("bias", "masked_bias")
    }
    assert set(translators("gpt2")[1](old)) == set(ours)
    block = plain.transformer.h[0]
    assert set(translators("gpt2", of_blocks=True)[1](block.state_dict())) == {
        key.removeprefix("transformer.seq_layers.0.") for key in ours if "seq_layers.0." in key
    }
    init_hook, forward_hook, return_hook = block_hooks("gpt2")
    assert init_hook(GPT2, 1)[1]["layer_idx"] == 1
    assert forward_hook("hidden")[0][0] == ("hidden", None)
    assert return_hook(("hidden", None)) == "hidden"
    failure = raised(lambda: translators("gpt2")[0]({"h.0.attention.query.weight": torch.zeros(2, 2)}))
    assert "not all of attention.query.weight, attention.key.weight" in str(failure)
