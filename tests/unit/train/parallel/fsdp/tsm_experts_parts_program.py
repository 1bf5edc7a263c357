"""Routing of tokens, the layout of experts over ranks, and states of listed experts, in one process."""

import itertools

import torch
from torch import nn

from clary.train.parallel.fsdp.cuts import cut_of
from clary.train.parallel.fsdp.experts.configuration import MoEConfig
from clary.train.parallel.fsdp.experts.groups import ExpertRanks
from clary.train.parallel.fsdp.experts.layer import MoELayer, drawing_apart
from clary.train.parallel.fsdp.experts.routing import (
    best_routes,
    even_choice,
    even_share_loss,
    route,
    sinkhorn_scores,
    z_loss,
)
from clary.train.parallel.fsdp.experts.spreading import is_of_experts, spread_experts
from clary.train.parallel.fsdp.experts.states import drop_experts_of_others
from clary.train.parallel.tensor.collectives import TensorGroup


def logits_of(num_tokens, num_experts, seed=0):
    generator = torch.Generator().manual_seed(seed)
    # The first expert has the highest logits for nearly all tokens.
    return torch.randn(num_tokens, num_experts, generator=generator) + torch.linspace(3, 0, num_experts)


def test_best_routes_are_the_softmax_of_the_best_logits():
    routes = best_routes(torch.tensor([[0.0, 2.0, 1.0]]), 2)
    assert routes.experts.tolist() == [[1, 2]]
    expected = torch.tensor([2.0, 1.0]).softmax(0)
    torch.testing.assert_close(routes.weights[0], expected)


def test_even_choice_gives_no_expert_more_than_its_share():
    for num_tokens, num_experts, top_k in ((16, 4, 1), (13, 4, 2), (64, 8, 2), (1, 4, 2), (0, 4, 2), (5, 3, 3)):
        for seed in range(5):
            chosen = even_choice(logits_of(num_tokens, num_experts, seed), top_k)
            assert chosen.shape == (num_tokens, top_k)
            counts = torch.bincount(chosen.flatten(), minlength=num_experts)
            share = -(-num_tokens * top_k // num_experts)
            over = (counts - share).clamp(min=0).sum()
            assert over <= top_k, (
                num_tokens,
                num_experts,
                top_k,
                counts,
            )  # tokens that all other experts have rejected
            assert all(len(set(row)) == top_k for row in chosen.tolist())


def test_even_choice_leaves_no_pair_of_tokens_that_would_gain_by_a_swap():
    logits = logits_of(12, 4)
    chosen = even_choice(logits, 1).flatten().tolist()
    scores = logits.softmax(-1)
    for token in range(12):
        for expert in range(4):
            prefers = scores[token, expert] > scores[token, chosen[token]]
            weakest = min(scores[other, expert] for other in range(12) if chosen[other] == expert)
            assert not (prefers and scores[token, expert] > weakest), (token, expert)


def test_even_choice_equals_the_best_choice_if_that_is_even():
    logits = torch.eye(4).repeat(3, 1) * 5
    assert even_choice(logits, 1).flatten().tolist() == [0, 1, 2, 3] * 3


def test_sinkhorn_scores_give_all_experts_equal_shares():
    logits = logits_of(200, 4)
    scores = sinkhorn_scores(logits)
    rows = scores.softmax(1)
    torch.testing.assert_close(rows.sum(0), torch.full((4,), 50.0), rtol=1e-3, atol=1e-3)
    before = torch.bincount(logits.argmax(1), minlength=4).max()
    after = torch.bincount(scores.argmax(1), minlength=4).max()
    assert after < 70 < 120 < before, (before, after)
    # The correction depends on the expert and not on the token: two experts keep their order for all tokens.
    torch.testing.assert_close((scores - logits).std(0), torch.zeros(4), rtol=0, atol=1e-5)
    assert sinkhorn_scores(logits[:0]).shape == (0, 4)


def test_sinkhorn_routes_with_the_weights_of_the_router():
    logits = logits_of(20, 4)
    routes = route(logits, 2, MoEConfig(moe_z_loss_coeff=0.0))
    expected = logits.softmax(-1).gather(1, routes.experts)
    torch.testing.assert_close(routes.weights, expected / expected.sum(-1, keepdim=True))


def test_the_balancing_loss_is_lowest_for_even_shares():
    even = torch.eye(4).repeat(8, 1) * 9
    torch.testing.assert_close(even_share_loss(even, even.argmax(1, keepdim=True)), torch.tensor(1.0))
    uneven = torch.zeros(8, 4)
    uneven[:, 0] = 50.0
    torch.testing.assert_close(even_share_loss(uneven, uneven.argmax(1, keepdim=True)), torch.tensor(4.0))


def test_the_z_loss_is_the_mean_square_of_the_normaliser():
    torch.testing.assert_close(z_loss(torch.zeros(5, 4)), torch.tensor(4.0).log().square())
    assert z_loss(torch.zeros(0, 4)) == 0


def test_added_losses_are_gradients_of_the_logits():
    config = MoEConfig(moe_load_balancing="aux_loss", moe_aux_loss_coeff=0.5, moe_z_loss_coeff=0.25)
    logits = logits_of(9, 4).requires_grad_()
    route(logits, 2, config, scale=0.1).weights.sum().mul(0.0).backward()
    other = logits.detach().clone().requires_grad_()
    experts = best_routes(other, 2).experts
    (0.1 * (0.5 * even_share_loss(other, experts) + 0.25 * z_loss(other))).backward()
    torch.testing.assert_close(logits.grad, other.grad)


def test_no_balancing_adds_no_loss():
    logits = logits_of(9, 4).requires_grad_()
    routes = route(logits, 2, MoEConfig(moe_load_balancing="none"))
    routes.weights.sum().mul(0.0).backward()
    assert logits.grad.abs().max() == 0
    assert torch.equal(routes.experts, best_routes(logits, 2).experts)


def test_ranks_of_experts_by_degrees():
    ranks = ExpertRanks(8, 2, 4)
    assert ranks.num_shards == 2
    assert ranks.ep_groups() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert ranks.same_groups() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert ranks.shard_groups() == [[0, 2], [4, 6], [1, 3], [5, 7]]
    assert ranks.replica_groups() == [[0, 4], [2, 6], [1, 5], [3, 7]]
    assert ExpertRanks(8, 4, 2).num_shards == 1
    assert ExpertRanks(8, 2).num_shards == 4
    assert ExpertRanks(8, 2, 1).shard_groups() == [[rank] for rank in (0, 2, 4, 6, 1, 3, 5, 7)]
    for size, degree, shard_degree in ((8, 3, 0), (12, 2, 3), (12, 4, 6)):
        try:
            ExpertRanks(size, degree, shard_degree)
        except ValueError as error:
            assert f"expert_parallel_degree is {degree}" in str(error)  # noqa: PT017 - no pytest here
        else:
            raise AssertionError((size, degree, shard_degree))


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.top_k = 2
        self.gate = nn.Linear(4, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def weigh(self, logits):
        best, experts = logits.softmax(-1).topk(self.top_k, dim=-1)
        return best / best.sum(-1, keepdim=True), experts

    def forward(self, hidden):
        rows = hidden.view(-1, hidden.shape[-1])
        logits = self.gate(rows)
        weights, experts = self.weigh(logits)
        total = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            token, choice = torch.where(experts == number)
            total = total.index_add(0, token, expert(rows[token]) * weights[token, choice, None])
        return total.view(hidden.shape), logits


def unscaled(block, logits):
    return logits.softmax(-1).topk(block.top_k, dim=-1)


def sigmoid(block, logits):
    best, experts = logits.sigmoid().topk(block.top_k, dim=-1)
    return best / best.sum(-1, keepdim=True), experts


def second_without_the_first(block, logits):
    """Choose as PhiMoE does: each expert's weight is its share among the experts that are left."""
    first, best = logits.softmax(-1).max(-1, keepdim=True)
    second, next_best = logits.scatter(-1, best, -torch.inf).softmax(-1).max(-1, keepdim=True)
    return torch.cat((first, second), -1), torch.cat((best, next_best), -1)


def corrected(block, logits):
    scores = logits.softmax(-1)
    experts = (scores + block.correction).topk(block.top_k, dim=-1).indices
    best = scores.gather(-1, experts)
    return best / best.sum(-1, keepdim=True), experts


def failing(block, logits):
    raise RuntimeError("no kernel for this device")


def test_layers_with_routing_of_another_formula_are_refused():
    for device, weigh in itertools.product(
        ("cpu", "meta"), (unscaled, sigmoid, second_without_the_first, corrected, failing)
    ):

        class Other(Listed):
            pass

        Other.weigh = weigh
        with torch.device(device):
            block = Other()
        block.register_buffer("correction", torch.zeros(4, device=device))
        found = None
        try:
            spread_experts(nn.Sequential(block), TensorGroup(None, 0, 2), MoEConfig())
        except ValueError as error:
            found = str(error)
        assert found is not None, (device, weigh)
        words = "no kernel for this device" if weigh is failing else "chooses or weighs experts by another formula"
        assert "0 is a Other, wh" in found, found
        assert words in found, found
        assert type(block) is Other
        assert block.training
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    with torch.device("meta"):
        block = Listed()
    spread_experts(nn.Sequential(block), TensorGroup(None, 0, 2), MoEConfig())
    assert isinstance(block, MoELayer)
    assert block.training
    assert block.gate.training
    assert block.gate.weight.is_meta
    assert torch.equal(torch.random.get_rng_state(), before)


def test_listed_experts_keep_the_numbers_of_the_whole_layer():
    model = nn.ModuleDict({"mlp": Listed()})
    whole = {name: value.clone() for name, value in model.state_dict().items()}
    spread_experts(model, TensorGroup(None, 1, 2), MoEConfig())
    names = [f"mlp.experts.{number}.{kind}" for number in (2, 3) for kind in ("weight", "bias")]
    assert [name for name in model.state_dict() if "experts" in name] == names
    assert isinstance(model["mlp"], MoELayer)
    assert isinstance(model["mlp"], Listed)
    assert cut_of(model["mlp"].experts.get_submodule("2"), "weight").axis == "ep"
    assert is_of_experts(model["mlp"].experts)
    assert is_of_experts(model["mlp"].experts.get_submodule("3"))
    assert not is_of_experts(model["mlp"])
    assert not is_of_experts(model["mlp"].gate)
    own = drop_experts_of_others(model, whole)
    assert own.keys() == model.state_dict().keys()
    model.load_state_dict(own)


def test_only_experts_are_initialised_with_separate_seeds():
    drawn = []
    for rank in range(2):
        model = spread_experts(nn.Sequential(Listed()), TensorGroup(None, rank, 2), MoEConfig())
        torch.manual_seed(5)
        for part in model.modules():
            if isinstance(part, nn.Linear):
                with drawing_apart(part):
                    part.reset_parameters()
        drawn.append([one.detach() for one in model.parameters()] + [torch.rand(3)])
    is_alike = [torch.equal(one, other) for one, other in zip(*drawn, strict=True)]
    assert is_alike == [True, False, False, False, False, True]


def test_one_rank_keeps_all_experts_and_balances_tokens():
    class Expert(nn.Linear):
        num_rows = 0

        def forward(self, rows):
            self.num_rows += rows.shape[0]
            return super().forward(rows)

    torch.manual_seed(0)
    block = Listed()
    block.experts = nn.ModuleList(Expert(4, 4) for _ in range(4))
    model = spread_experts(nn.Sequential(block), TensorGroup(None, 0, 1), MoEConfig(moe_load_balancing="balanced"))
    mixed, logits = model(torch.randn(2, 5, 4))
    assert mixed.shape == (2, 5, 4)
    assert logits.shape == (10, 4)
    mixed.sum().backward()
    assert [expert.num_rows for expert in model[0].experts.children()] == [5, 5, 5, 5]
    assert cut_of(model[0].experts.get_submodule("0"), "weight") is None
