"""Sharded training on several ranks, compared with one process that trains on the batches of all ranks."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from clary.train.parallel.sharded import state
from clary.train.parallel.sharded.build import shard_model
from clary.train.parallel.sharded.groups import make_sharding_groups
from clary.train.parallel.sharded.optimizer import ShardedOptimizer
from clary.train.parallel.sharded.settings import ShardingSettings
from clary.train.parallel.sharded.units import register_parameter

WIDTH = 24
_BATCH = 4
_STEPS = 4
_THRESHOLD = 30  # biases stay whole, weights are cut
CLIPPING = 0.05  # below the actual norms, so that every step clips


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 41)  # not a multiple of any degree
        self.down = nn.Linear(41, WIDTH)

    def forward(self, hidden):
        return hidden + self.down(torch.relu(self.up(self.norm(hidden))))


class Stack(nn.Module):
    """Layers in a list, of which the first runs twice; a weight shared by both ends; one unused module; and one
    used in odd steps only."""

    def __init__(self, recomputes=None):
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.odd = Block()
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.half_used = nn.ParameterDict({"used": torch.ones(WIDTH * 2), "unused": torch.ones(WIDTH * 2)})
        self.head = nn.Linear(WIDTH, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(0.5))
        self.recomputes = recomputes

    def forward(self, tokens, step=0):
        hidden = self.embedding(tokens) * self.scale * self.half_used["used"][:WIDTH]
        for block in [*self.blocks, self.blocks[0]]:
            if self.recomputes is None:
                hidden = block(hidden)
            else:
                hidden = checkpoint(block, hidden, use_reentrant=self.recomputes)
        if step % 2:
            hidden = self.odd(hidden)
        return {"logits": self.head(hidden)}


class Borrower(nn.Module):
    """Its forward pass uses the weight of a child that it does not call."""

    def __init__(self):
        super().__init__()
        self.lender = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList([Block()])
        register_parameter(self, self.lender.weight)
        register_parameter(self, self.lender.bias)

    def forward(self, features):
        return self.layers[0](nn.functional.linear(features, self.lender.weight, self.lender.bias))


def model(**options):
    torch.manual_seed(5)
    return Stack(**options)


def batch(rank, step, part):
    generator = torch.Generator().manual_seed(10_000 * part + 100 * step + rank)
    return torch.randint(50, (_BATCH, 7), generator=generator)


def loss_of(module, tokens, step):
    logits = module(tokens, step)["logits"]
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def groups_of(rank, degree, **options):
    dist.all_reduce(torch.ones(1))
    return make_sharding_groups(dist.group.WORLD, degree, **options)


def settings(**options):
    chosen = {"param_persistence_threshold": _THRESHOLD, "gradient_clipping": CLIPPING, **options}
    return ShardingSettings(**chosen)


def shard(module, groups, kind, **options):
    sharded = shard_model(module, groups, settings(**options))
    return sharded, ShardedOptimizer(optimizer_of(module, kind), sharded)


def optimizer_of(module, kind):
    """Return an optimizer with two groups, so that parameters of one buffer differ in their options."""
    parameters = list(module.parameters())
    options = {"lr": 0.5, "momentum": 0.9} if kind is torch.optim.SGD else {"lr": 0.01}
    return kind([{"params": parameters[::2]}, {"params": parameters[1::2], "weight_decay": 0.1}], **options)


def train_alone(size, kind, *, parts=1, steps=_STEPS, clipping=CLIPPING, module=None):
    """Return losses, norms and the module after steps on the batches of all ranks."""
    module = module or model()
    optimizer = optimizer_of(module, kind)
    losses, norms = [], []
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(parts):
            for rank in range(size):
                loss = loss_of(module, batch(rank, step, part), step)
                (loss / size / parts).backward()
                losses.append(loss.item())
        norms.append(nn.utils.clip_grad_norm_(module.parameters(), clipping or float("inf")).item())
        optimizer.step()
    return losses, norms, module


def train_sharded(rank, size, sharded, optimizer, *, parts=1, steps=range(_STEPS), announces=(False, False)):
    losses, norms = [], []
    for step in steps:
        optimizer.zero_grad()
        for part in range(parts):
            if announces[part]:
                sharded.expect_last_backward()
            loss = loss_of(sharded.module, batch(rank, step, part), step)
            (loss / parts).backward()
            everyone = [None] * size
            dist.all_gather_object(everyone, loss.item())
            losses += everyone
        assert optimizer.step()
        norms.append(optimizer.gradient_norm)
    return losses, norms


def assert_alike(ours, theirs):
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=2e-5, atol=2e-6)


def assert_same_weights(sharded, module, **tolerance):
    found = state.full_model_state(sharded)
    wanted = module.state_dict()
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


def degrees(size):
    return [degree for degree in (1, 2, 4) if size % degree == 0]


def compare(rank, size, kind, degree, *, parts=1, announces=(False, False), options=None, made=None, groups=None):
    sharded, optimizer = shard(model(**(made or {})), groups or groups_of(rank, degree), kind, **(options or {}))
    losses, norms = train_sharded(rank, size, sharded, optimizer, parts=parts, announces=announces)
    wanted_losses, wanted_norms, module = train_alone(size, kind, parts=parts)
    assert_alike(losses, wanted_losses)
    assert_alike(norms, wanted_norms)
    assert_same_weights(sharded, module, rtol=1e-4, atol=2e-5)
    assert sharded.num_live_parameters == 0
    return sharded, optimizer


def test_sgd_at_every_degree(rank, size):
    for degree in degrees(size):
        compare(rank, size, torch.optim.SGD, degree)


def test_adamw(rank, size):
    compare(rank, size, torch.optim.AdamW, max(1, size // 2))


def test_accumulation_over_two_backward_passes(rank, size):
    for degree in degrees(size):
        compare(rank, size, torch.optim.SGD, degree, parts=2)


def test_an_announced_last_backward_pass(rank, size):
    for degree in degrees(size)[:2]:
        compare(rank, size, torch.optim.SGD, degree, parts=2, announces=(False, True))


def test_gradients_are_those_of_the_whole_batch(rank, size):
    for degree in degrees(size):
        sharded, _ = shard(model(), groups_of(rank, degree), torch.optim.SGD)
        alone = model()
        loss_of(sharded.module, batch(rank, 1, 0), 1).backward()
        for other in range(size):
            (loss_of(alone, batch(other, 1, 0), 1) / size).backward()
        sharded.end_accumulation()
        for flat in sharded.flats:
            for name, slice_, piece in zip(flat.layout.names, flat.slices, flat.pieces, strict=True):
                wanted = alone.get_parameter(name).grad
                if wanted is None or not piece.length:
                    assert slice_.grad is None, name
                else:
                    part = wanted.flatten()[piece.start : piece.start + piece.length]
                    torch.testing.assert_close(slice_.grad, part, rtol=1e-4, atol=1e-7)


def test_with_two_hosts_parameters_are_gathered_in_two_stages(rank, size):
    groups = groups_of(rank, 4, host=f"host-{rank // 2}")
    assert groups.grid == (2, 2)
    assert groups.segment == [0, 2, 1, 3][rank]
    compare(rank, size, torch.optim.AdamW, 4, parts=2, groups=groups)


def test_recomputation_gathers_again(rank, size):
    for is_reentrant in (False, True):
        compare(rank, size, torch.optim.SGD, size, made={"recomputes": is_reentrant})


def test_at_threshold_0_every_parameter_is_sharded(rank, size):
    sharded, _ = compare(rank, size, torch.optim.SGD, size, options={"param_persistence_threshold": 0})
    assert all(flat.groups is not None for flat in sharded.flats)


def test_parameters_that_are_not_trained(rank, size):
    torch.manual_seed(1)
    alone = nn.Sequential(Block(), Block(), Block())
    alone[1].requires_grad_(False)
    alone[2].up.weight.requires_grad_(False)
    module = copy.deepcopy(alone)
    sharded, optimizer = shard(module, groups_of(rank, size), torch.optim.SGD, gradient_clipping=0.0)
    live = []
    alone_optimizer = optimizer_of(alone, torch.optim.SGD)
    module[0].norm.weight.register_post_accumulate_grad_hook(lambda _: live.append(sharded.num_live_parameters))
    features = torch.randn(3, WIDTH)
    for _ in range(2):
        for one, stepper in ((module, optimizer), (alone, alone_optimizer)):
            stepper.zero_grad()
            one(features).square().mean().backward()
            stepper.step()
    assert_same_weights(sharded, alone, rtol=1e-4, atol=1e-4)
    whole = 2 * 41 * WIDTH
    assert live, "the hook was not called"
    assert max(live) <= whole + 2 * size, f"{live} elements were whole when the first block's backward pass ended"


def test_16_bit_parameters_train_with_32_bit_masters(rank, size):
    for dtype, loss_scale in ((torch.bfloat16, 1.0), (torch.float16, 1024.0)):
        for degree in (1, size):
            module = model()
            sharded, optimizer = shard(module, groups_of(rank, degree), torch.optim.AdamW, compute_dtype=dtype)
            module.scale.data = module.scale.data.to(dtype)
            losses = []
            for step in range(_STEPS):
                optimizer.zero_grad()
                loss = loss_of(module, batch(rank, step, 0), step)
                (loss * loss_scale).backward()
                everyone = [None] * size
                dist.all_gather_object(everyone, loss.item())
                losses += everyone
                assert optimizer.step(loss_scale=loss_scale)
            wanted, _, alone = train_alone(size, torch.optim.AdamW)
            torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted), rtol=0.02, atol=0.02)
            found = state.full_model_state(sharded)
            assert found["embedding.weight"].dtype == torch.float32
            assert all(one.dtype == dtype for one in module.parameters())
            name = "blocks.0.up.weight"
            error = (found[name] - alone.state_dict()[name]).abs().max()
            assert error < 0.03, f"{dtype}, degree {degree}: {error}"
