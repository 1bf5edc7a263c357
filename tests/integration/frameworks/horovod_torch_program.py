"""Program of one rank: checks of `horovod.torch`, each a function `check_...`; failures are printed as JSON.

All ranks run the functions in the same order. The first failure on a rank ends its run and is printed.
"""

import json
import math
import os
import re
import sys
import threading
import time
import traceback
import warnings

import horovod.torch as hvd
import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def values(rank, shape, dtype=torch.float32):
    numbers = torch.arange(int(np.prod(shape)), dtype=torch.float64).reshape(shape) % 7 + rank + 1
    return numbers.to(dtype)


def of_all(shape, dtype=torch.float32):
    return [values(rank, shape, dtype) for rank in range(hvd.size())]


def check_places():
    assert hvd.rank() == int(os.environ["RANK"])
    assert hvd.size() == int(os.environ["WORLD_SIZE"])
    assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (hvd.rank(), hvd.size(), 0, 1)
    assert hvd.is_homogeneous()


def check_allreduce_of_every_type_and_reduction():
    for dtype in FLOATS + WHOLE:
        mine, all_values = values(hvd.rank(), (3, 5), dtype), of_all((3, 5), dtype)
        stacked = torch.stack(all_values)
        expected = {
            hvd.Sum: sum(all_values),
            hvd.Min: stacked.amin(0),
            hvd.Max: stacked.amax(0),
            hvd.Product: stacked.double().prod(0).to(dtype),
        }
        if dtype in FLOATS:
            expected[hvd.Average] = (stacked.double().mean(0)).to(dtype)
        else:
            expected[hvd.Average] = torch.div(sum(all_values), hvd.size(), rounding_mode="trunc")
        for op, wanted in expected.items():
            result = hvd.allreduce(mine, op=op, name=f"all.{dtype}.{op}")
            assert result.dtype is dtype
            assert torch.allclose(result.double(), wanted.double(), rtol=1e-2), (dtype, op, result, wanted)
        assert torch.equal(mine, values(hvd.rank(), (3, 5), dtype)), "an input has changed"


def check_scales_and_places_of_results():
    mine = values(hvd.rank(), (4,))
    scaled = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert torch.allclose(scaled, sum(of_all((4,))) * 2)
    again = hvd.allreduce_(mine, op=hvd.Sum)
    assert again is mine
    assert torch.allclose(mine, sum(of_all((4,))))
    assert torch.equal(hvd.allreduce(torch.tensor(3.0), op=hvd.Sum), torch.tensor(3.0 * hvd.size()))
    assert hvd.allreduce(torch.empty(0, 4), op=hvd.Sum).shape == (0, 4)


def check_many_small_and_large_tensors_in_different_orders():
    """Submit from several threads, in a different order on each rank."""
    shapes = {f"t{number}": (number % 5 + 1, 40 << (number % 4)) for number in range(40)} | {"large": (3, 1 << 18)}
    for _ in range(3):
        order = list(shapes)
        np.random.default_rng(hvd.rank()).shuffle(order)
        results = {}

        def run(names, results=results):
            handles = {
                name: hvd.allreduce_async(values(hvd.rank(), shapes[name]), op=hvd.Sum, name=name) for name in names
            }
            results.update({name: hvd.synchronize(handle) for name, handle in handles.items()})

        threads = [threading.Thread(target=run, args=(order[part::3],)) for part in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(results) == sorted(shapes)
        for name, result in results.items():
            assert torch.allclose(result, sum(of_all(shapes[name]))), name


def check_groups():
    tensors = [values(hvd.rank(), (number + 1,)) for number in range(4)]
    for name in ("grouped", "grouped", None):
        for place, result in enumerate(hvd.grouped_allreduce(tensors, op=hvd.Sum, name=name)):
            assert torch.allclose(result, sum(of_all((place + 1,))))
    gathered = hvd.grouped_allgather(tensors, name="gathered")
    assert torch.equal(gathered[2], torch.cat(of_all((3,))))
    scattered = hvd.grouped_reducescatter([values(hvd.rank(), (hvd.size(), 2))] * 2, op=hvd.Sum)
    assert torch.allclose(scattered[1], sum(of_all((hvd.size(), 2)))[hvd.rank() : hvd.rank() + 1])


def check_allgather_of_unequal_lengths():
    rows = [rank * 2 for rank in range(hvd.size())]
    result = hvd.allgather(torch.full((rows[hvd.rank()], 3), float(hvd.rank())), name="rows")
    assert result[:, 0].tolist() == [float(rank) for rank in range(hvd.size()) for _ in range(rows[rank])]
    assert hvd.allgather(torch.tensor(hvd.rank())).tolist() == list(range(hvd.size()))


def check_broadcast_alltoall_and_reducescatter():
    root = hvd.size() - 1
    assert torch.equal(hvd.broadcast(values(hvd.rank(), (5,)), root), values(root, (5,)))
    inplace = values(hvd.rank(), (5,))
    hvd.broadcast_(inplace, 0, name="in place")
    assert torch.equal(inplace, values(0, (5,)))
    splits = [rank + hvd.rank() for rank in range(hvd.size())]
    sent = torch.full((sum(splits), 2), float(hvd.rank()))
    received, counts = hvd.alltoall(sent, splits)
    assert counts.tolist() == [rank + hvd.rank() for rank in range(hvd.size())]
    assert received[:, 1].tolist() == [float(rank) for rank in range(hvd.size()) for _ in range(rank + hvd.rank())]
    assert hvd.alltoall(torch.full((hvd.size(),), hvd.rank())).tolist() == list(range(hvd.size()))
    rows = hvd.size() + 1  # rank 0 gets one row more
    result = hvd.reducescatter(values(hvd.rank(), (rows, 3)), op=hvd.Sum)
    first = hvd.rank() + (hvd.rank() > 0)
    assert torch.allclose(result, sum(of_all((rows, 3)))[first : first + 1 + (hvd.rank() == 0)])


def check_process_sets():
    even = hvd.add_process_set(hvd.ProcessSet(range(0, hvd.size(), 2)))
    odd = hvd.add_process_set(range(1, hvd.size(), 2))
    mine, other = (even, odd) if hvd.rank() % 2 == 0 else (odd, even)
    assert (mine.included(), other.included()) == (True, False)
    result = hvd.allreduce(values(hvd.rank(), (4,)), op=hvd.Sum, process_set=mine, name="in a set")
    assert torch.allclose(result, sum(values(rank, (4,)) for rank in mine.ranks))
    root = mine.ranks[-1]
    assert torch.equal(hvd.broadcast(values(hvd.rank(), (2,)), root, process_set=mine), values(root, (2,)))
    assert_raises(ValueError, "is not in process set", lambda: hvd.allreduce(torch.ones(1), process_set=other))
    assert_raises(ValueError, "there already", lambda: hvd.add_process_set(range(0, hvd.size(), 2)))
    assert hvd.remove_process_set(odd)
    assert hvd.remove_process_set(even)
    assert even.process_set_id is None
    assert not hvd.remove_process_set(hvd.global_process_set)


def check_join():
    for first in range(hvd.size()):
        results = []
        if hvd.rank() != first:
            results = [hvd.allreduce(torch.ones(4), name=f"joined.{number}", op=hvd.Sum) for number in range(3)]
        last = hvd.join()
        assert last != first
        assert all(result.tolist() == [hvd.size() - 1.0] * 4 for result in results)
        assert hvd.allgather_object(last) == [last] * hvd.size()


def check_errors_name_what_differs():
    assert_raises(
        hvd.HorovodInternalError,
        "mismatched shape",
        lambda: hvd.allreduce(torch.ones(2 + hvd.rank()), name="shapes"),
    )
    dtype = torch.float32 if hvd.rank() else torch.int32
    assert_raises(
        hvd.HorovodInternalError,
        "mismatched data type",
        lambda: hvd.allreduce(torch.ones(2, dtype=dtype), name="types"),
    )
    assert_raises(
        hvd.HorovodInternalError,
        "mismatched root rank",
        lambda: hvd.broadcast(torch.ones(2), hvd.rank(), name="roots"),
    )
    assert_raises(ValueError, "contiguous", lambda: hvd.allreduce(torch.ones(2, 3).t()))
    assert_raises(ValueError, "not supported", lambda: hvd.allreduce(torch.ones(2, dtype=torch.complex64)))
    handle = hvd.allreduce_async(torch.ones(2), name="twice")
    if hvd.rank() == 0:
        assert_raises(ValueError, "duplicate", lambda: hvd.allreduce_async(torch.ones(2), name="twice"))
    hvd.synchronize(handle)
    assert hvd.poll(handle)
    assert hvd.allreduce(torch.ones(2), name="shapes").tolist() == [1.0, 1.0]


def check_adasum():
    if hvd.size() & (hvd.size() - 1):
        assert_raises(NotImplementedError, "power of 2", lambda: hvd.allreduce(torch.ones(2), op=hvd.Adasum))
        return
    for dtype in FLOATS:
        gradients = [values(rank, (6,), dtype).double() * (1 if rank % 2 else -0.5) for rank in range(hvd.size())]
        result = hvd.allreduce(gradients[hvd.rank()].to(dtype), op=hvd.Adasum, name=f"adasum.{dtype}")
        while len(gradients) > 1:
            gradients = [adasum(gradients[at], gradients[at + 1]) for at in range(0, len(gradients), 2)]
        assert torch.allclose(result.double(), gradients[0], rtol=2e-2, atol=1e-2), (dtype, result, gradients[0])
    same = hvd.allreduce(torch.ones(3), op=hvd.Adasum)
    assert torch.allclose(same, torch.ones(3))  # Adasum of equal gradients is their mean


def adasum(a, b):
    dot = (a * b).sum()
    return (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b


def small_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def batch_of(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 6, generator=generator), torch.randint(0, 3, (4,), generator=generator)


def train_alone(steps, passes=1):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(0, steps, passes):
        optimizer.zero_grad()
        for one in range(step, step + passes):
            x, y = (
                torch.cat(parts) for parts in zip(*(batch_of(rank, one) for rank in range(hvd.size())), strict=True)
            )
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def train(steps, passes=1, **options):
    model = small_model(seed=hvd.rank())  # values differ until they are broadcast
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if options.pop("is_named", True):
        options["named_parameters"] = model.named_parameters()
    if "groups" in options and options["groups"] == "lists":
        options["groups"] = [list(model[0].parameters())]
    optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes, **options)
    assert isinstance(optimizer, torch.optim.SGD)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1000)
    for step in range(0, steps, passes):
        optimizer.zero_grad()
        for one in range(step, step + passes):
            x, y = batch_of(hvd.rank(), one)
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
    return model


def check_training_equals_one_process_with_all_batches():
    wanted = train_alone(6)
    for options in (
        {},
        {"is_named": False},
        {"groups": 2},
        {"groups": "lists"},
        {"gradient_predivide_factor": 2.0},
        {"process_set": hvd.global_process_set},
    ):
        assert_equal_models(train(6, **options), wanted, 1e-5, options)
    assert_equal_models(train(6, passes=2), train_alone(6, passes=2), 1e-5, "two passes")
    assert_equal_models(train(6, compression=hvd.Compression.fp16), wanted, 5e-3, "fp16")


def assert_equal_models(model, wanted, tolerance, what):
    for found, expected in zip(model.parameters(), wanted.parameters(), strict=True):
        assert torch.allclose(found, expected, atol=tolerance), (what, (found - expected).abs().max())


def check_groups_of_gradients_in_a_process_set_without_rank_0():
    ranks = list(range(1, hvd.size()))
    others = hvd.add_process_set(ranks)

    def gradients_of(rank, wrap=lambda optimizer, _: optimizer):
        model = small_model()
        optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1), model)
        x, y = batch_of(rank, 0)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        return [p.grad for p in model.parameters()]

    for groups in (2, "lists"):

        def wrap(optimizer, model, groups=groups):
            chosen = [list(model[2].parameters())] if groups == "lists" else groups
            return hvd.DistributedOptimizer(optimizer, model.named_parameters(), groups=chosen, process_set=others)

        found = gradients_of(hvd.rank(), wrap)
        together = ranks if hvd.rank() else [0]
        wanted = [torch.stack(parts).mean(0) for parts in zip(*map(gradients_of, together), strict=True)]
        for one, expected in zip(found, wanted, strict=True):
            assert torch.allclose(one, expected, atol=1e-6), groups
    hvd.remove_process_set(others)


def check_a_schedule_made_before_the_distributed_optimizer():
    is_power_of_2 = not hvd.size() & (hvd.size() - 1)
    for op in (hvd.Average, hvd.Adasum) if is_power_of_2 else (hvd.Average,):
        torch.manual_seed(0)
        model = nn.Linear(6, 1)
        plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(plain, step_size=1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), op=op)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns of a schedule whose optimizer has not stepped
            for step in range(3):
                optimizer.zero_grad()
                model(batch_of(hvd.rank(), step)[0]).sum().backward()
                optimizer.step()
                scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**3
        everybody = hvd.allgather(model.weight.detach())
        assert torch.equal(everybody[0], everybody[-1]), (op, "ranks differ: gradients were not reduced")


def check_delta_optimizer_of_adasum():
    if hvd.size() & (hvd.size() - 1):
        return
    model = train(3, op=hvd.Adasum)
    for parameter in model.parameters():
        everybody = hvd.allgather(parameter.detach().reshape(1, -1))
        assert torch.equal(everybody[0], everybody[-1]), "ranks differ"


def check_every_rank_gets_samples_of_an_epoch_that_is_nearly_over():
    places = hvd.rank(), hvd.size()
    for length in range(12):
        for processed in range(length + 1):
            sampler = hvd.elastic.ElasticSampler(range(length))
            sampler.load_state_dict({"epoch": 1, "processed_num": processed})
            own = list(sampler)
            assert len(own) == len(sampler) == math.ceil((length - processed) / places[1]), (length, processed, own)
            everybody = hvd.allgather(torch.tensor(own, dtype=torch.int64)).tolist()
            assert set(everybody) == set(sampler.remaining_indices), (length, processed, everybody)


def check_clipping_and_parameters_without_gradient():
    model = small_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters())
    x, y = batch_of(hvd.rank(), 0)
    parts = model[0](x) if hvd.rank() == 0 else model(x)  # on rank 0 the last layer has no gradient
    (parts.sum() if hvd.rank() == 0 else nn.functional.cross_entropy(parts, y)).backward()
    assert_raises(AssertionError, "zero_grad", optimizer.zero_grad)
    optimizer.synchronize()
    assert model[2].weight.grad is not None
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with optimizer.skip_synchronize():
        optimizer.step()


def check_parameters_that_are_unfrozen_frozen_or_added_later():
    is_power = not hvd.size() & (hvd.size() - 1)
    for op in (hvd.Average, hvd.Adasum) if is_power else (hvd.Average,):
        for groups in (None, 2) if op == hvd.Average else (None,):
            model = small_model()
            last, first = model[-1], model[0]
            first.weight.requires_grad_(False)  # unfrozen later, in the optimizer from the start
            kept = [p for p in model.parameters() if p is not last.bias]  # this one is added later
            named = model.named_parameters()
            optimizer = torch.optim.AdamW(kept, 0.01, weight_decay=0.1)
            optimizer = hvd.DistributedOptimizer(optimizer, named, op=op, groups=groups)
            alone = small_model()
            alone[0].weight.requires_grad_(False)
            alone_optimizer = torch.optim.AdamW(
                [p for p in alone.parameters() if p is not alone[-1].bias], 0.01, weight_decay=0.1
            )
            for step in range(6):
                for net, steps in ((model, optimizer), (alone, alone_optimizer)):
                    steps.zero_grad()
                    if step == 2:
                        net[0].weight.requires_grad_(True)
                        net[0].bias.requires_grad_(False)
                        steps.add_param_group({"params": [net[-1].bias]})
                for rank in range(hvd.size()):
                    (alone(batch_of(rank, step)[0]) ** 2).mean().div(hvd.size()).backward()
                (model(batch_of(hvd.rank(), step)[0]) ** 2).mean().backward()
                optimizer.step()
                alone_optimizer.step()
            if op == hvd.Average:
                assert_equal_models(model, alone, 1e-5, f"frozen and unfrozen, groups={groups}")
            for p in model.parameters():
                assert len({tuple(row.flatten().tolist()) for row in hvd.allgather(p.detach()[None])}) == 1, op


def check_gradients_that_are_changed_before_they_are_reduced_are_named():
    def warned(change):
        model = small_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for step in range(2):
                optimizer.zero_grad()
                (model(batch_of(hvd.rank(), step)[0]) ** 2).mean().backward()
                change(model, optimizer)
                optimizer.step()
        return [str(one.message) for one in told if "optimizer.synchronize()" in str(one.message)]

    def clip(model, optimizer):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    told = warned(clip)
    assert len(told) == 1, told
    assert re.match("the gradient of [02].(weight|bias) was changed", told[0]), told
    assert warned(lambda model, optimizer: None) == []


def closure_of(model, optimizer, batches):
    def closure():
        optimizer.zero_grad()
        loss = sum((model(x) ** 2).mean() for x, _ in batches) / len(batches)
        loss.backward()
        return loss

    return closure


def check_steps_with_a_closure():
    """Gradients that a closure computes are reduced before the optimizer sees them, each time that it is called."""
    kinds = {
        "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
        "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, 0.3, max_iter=4),
        "LBFGS with a line search": lambda parameters: torch.optim.LBFGS(
            parameters, 0.3, max_iter=3, line_search_fn="strong_wolfe"
        ),
    }
    for kind, make in kinds.items():
        model, alone = small_model(), small_model()
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters())
        alone_optimizer = make(alone.parameters())
        for step in range(3):
            optimizer.step(closure_of(model, optimizer, [batch_of(hvd.rank(), step)]))
            batches = [batch_of(rank, step) for rank in range(hvd.size())]
            alone_optimizer.step(closure_of(alone, alone_optimizer, batches))
        assert_equal_models(model, alone, 1e-4, f"{kind} with a closure")

    model, alone = small_model(), small_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), op=hvd.Sum)
    alone_optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    for step in range(2):
        optimizer.zero_grad()
        alone_optimizer.zero_grad()
        loss = (model(batch_of(hvd.rank(), step)[0]) ** 2).mean()
        loss.backward()
        for rank in range(hvd.size()):
            (alone(batch_of(rank, step)[0]) ** 2).mean().backward()
        assert optimizer.step(loss.detach) == loss
        alone_optimizer.step()
    assert_equal_models(model, alone, 1e-5, "a closure that returns an earlier loss")


def check_sparse_gradients():
    for is_dense in (False, True):
        torch.manual_seed(1)
        model = nn.Embedding(10, 3, sparse=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), sparse_as_dense=is_dense
        )
        before = model.weight.detach().clone()
        model(torch.tensor([hvd.rank(), 9])).sum().backward()
        optimizer.step()
        change = before - model.weight.detach()
        wanted = torch.zeros(10, 3)
        wanted[: hvd.size()] = 1 / hvd.size()
        wanted[9] = 1
        assert torch.allclose(change, wanted), (is_dense, change)


def check_batch_norm_over_all_ranks():
    torch.manual_seed(3)
    whole = torch.randn(4 * hvd.size(), 3, 5)
    plain, ours = nn.BatchNorm1d(3), hvd.SyncBatchNorm(3)
    mine = whole[4 * hvd.rank() : 4 * hvd.rank() + 4].clone().requires_grad_()
    everything = whole.clone().requires_grad_()
    wanted, output = plain(everything), ours(mine)
    (wanted**3).sum().backward()
    (output**3).sum().backward()
    rows = slice(4 * hvd.rank(), 4 * hvd.rank() + 4)
    assert torch.allclose(output, wanted[rows], atol=1e-5)
    assert torch.allclose(mine.grad, everything.grad[rows], atol=1e-4)
    assert torch.allclose(ours.running_mean, plain.running_mean, atol=1e-6)
    assert torch.allclose(ours.running_var, plain.running_var, atol=1e-5)
    assert torch.allclose(hvd.allreduce(ours.weight.grad, op=hvd.Sum), plain.weight.grad, atol=1e-3)


def check_batch_norm_of_half_batches_with_more_elements_than_half_can_count():
    torch.manual_seed(4 + hvd.rank())
    mine = torch.randn(4, 3, 160, 160).half() + 2  # 102400 elements of each channel; the largest half is 65504
    ours, plain = hvd.SyncBatchNorm(3), nn.BatchNorm2d(3)
    output = ours(mine)
    plain(hvd.allgather(mine).float())
    assert torch.isfinite(output).all()
    assert torch.allclose(ours.running_mean, plain.running_mean, atol=1e-4)
    assert torch.allclose(ours.running_var, plain.running_var, atol=1e-4)
    large = hvd.SyncBatchNorm(1)
    large(torch.tensor([[-400.0], [400.0]]).half())  # a variance of 160000
    count = 2 * hvd.size()
    assert torch.allclose(large.running_var, torch.tensor([0.9 + 0.1 * 160000 * count / (count - 1)]))


def check_gradients_of_operations():
    x = values(hvd.rank(), (4, 2)).requires_grad_()
    hvd.allreduce(x, op=hvd.Sum).sum().backward()
    assert torch.allclose(x.grad, torch.full((4, 2), float(hvd.size())))
    x.grad = None
    hvd.allgather(x).sum().backward()
    assert torch.allclose(x.grad, torch.ones(4, 2))
    x.grad = None
    hvd.broadcast(x, 0).sum().backward()
    assert torch.allclose(x.grad, torch.ones(4, 2) if hvd.rank() == 0 else torch.zeros(4, 2))
    y = values(hvd.rank(), (hvd.size(), 2)).requires_grad_()
    (hvd.alltoall(y) * (hvd.rank() + 1)).sum().backward()
    assert y.grad[:, 0].tolist() == [rank + 1.0 for rank in range(hvd.size())]


def check_objects():
    told = hvd.broadcast_object({"of": hvd.rank(), "text": "x" * 1000} if hvd.rank() == 1 else None, root_rank=1)
    assert told == {"of": 1, "text": "x" * 1000}
    assert hvd.allgather_object("y" * hvd.rank()) == ["y" * rank for rank in range(hvd.size())]
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (hvd.rank() + 1))
    if hvd.rank() == 0:
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    moments = [state["exp_avg"].sum().item() for state in optimizer.state_dict()["state"].values()]
    assert hvd.allgather_object(moments) == [moments] * hvd.size()


def check_a_timeline_is_whole_json():
    path = os.path.join(os.environ["PROGRAM_FOLDER"], "timeline.json")
    hvd.start_timeline(path, mark_cycles=True)
    hvd.allreduce(torch.ones(2), name="drawn")
    hvd.stop_timeline()
    if hvd.rank() == 0:
        with open(path, encoding="utf-8") as file:
            names = [event["name"] for event in json.load(file)]
        assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "CYCLE_START"} <= set(names)


def check_an_idle_rank_holds_up_nobody_for_long():
    hvd.barrier()
    begun = time.monotonic()
    if hvd.rank() == 0:
        time.sleep(5)
    handle = hvd.allreduce_async(torch.ones(2), name="late")
    assert torch.equal(hvd.synchronize(handle), torch.ones(2))
    assert time.monotonic() - begun < 30


def check_a_second_start():
    hvd.shutdown()
    assert not hvd.is_initialized()
    assert_raises(ValueError, "has not been initialized", hvd.rank)
    hvd.init()
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [float(hvd.size())] * 2


def assert_raises(kind, words, call):
    try:
        call()
    except kind as error:
        if words not in str(error):
            raise AssertionError(f"{words!r} is not in: {error}") from error
    else:
        raise AssertionError(f"nothing was raised; expected {kind.__name__}")


def main():
    hvd.init(process_sets="dynamic")
    failures = {}
    for name, check in list(globals().items()):
        if not name.startswith("check_"):
            continue
        try:
            check()
        except Exception:  # noqa: BLE001 - told, whatever it is
            failures[name] = traceback.format_exc()
            break  # ranks may be at different operations now
    print("outcome " + json.dumps(failures), flush=True)
    sys.stdout.flush()
    if failures:
        os._exit(1)
    hvd.shutdown()


if __name__ == "__main__":
    main()
