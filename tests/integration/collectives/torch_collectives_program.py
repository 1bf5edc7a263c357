"""Every collective of torch.distributed over backend smddp, in the forms that programs use."""

import time
from datetime import timedelta
from random import Random

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import ReduceOp

REDUCIBLE = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
)
SIZES = (0, 1, 7, 1000, 300_001)


def raised(kind, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


def own(rank, count, dtype=torch.float32):
    """Return small integers that differ by rank and index and whose sums are exact in every type."""
    return ((torch.arange(count) + rank) % 5).to(dtype)


def test_all_reduce_sums_every_type_and_size(rank, size):
    for dtype in REDUCIBLE:
        for count in SIZES:
            tensor = own(rank, count, dtype)
            assert dist.all_reduce(tensor) is None
            assert torch.equal(tensor, sum(own(peer, count, dtype) for peer in range(size))), (dtype, count)


def test_all_reduce_supports_every_operation_but_premul_sum(rank, size):
    values = [torch.tensor([1, 2 + peer, 3 - peer], dtype=torch.int64) for peer in range(size)]
    stacked = torch.stack(values)
    expected = {
        ReduceOp.SUM: stacked.sum(0),
        ReduceOp.PRODUCT: stacked.prod(0),
        ReduceOp.MIN: stacked.min(0).values,
        ReduceOp.MAX: stacked.max(0).values,
    }
    bits = {ReduceOp.BAND: torch.bitwise_and, ReduceOp.BOR: torch.bitwise_or, ReduceOp.BXOR: torch.bitwise_xor}
    for op, combine in bits.items():
        total = values[0].clone()
        for value in values[1:]:
            total = combine(total, value)
        expected[op] = total
    for op, wanted in expected.items():
        tensor = values[rank].clone()
        dist.all_reduce(tensor, op)
        assert torch.equal(tensor, wanted), op
    mean = values[rank].double()
    dist.all_reduce(mean, ReduceOp.AVG)
    assert torch.allclose(mean, stacked.double().mean(0))
    premul = dist._make_nccl_premul_sum(2.0)
    assert "PREMUL_SUM" in raised(NotImplementedError, dist.all_reduce, torch.ones(1), premul)


def test_averages_of_integers_are_rounded_toward_zero(rank, size):
    for dtype in (torch.int8, torch.int32, torch.int64):
        values = [torch.tensor([3, -3 - peer, 2 * peer, 7], dtype=dtype) for peer in range(size)]
        total = sum(values)
        mean = (total.double() / size).trunc().to(dtype)
        tensor = values[rank].clone()
        dist.all_reduce(tensor, ReduceOp.AVG)
        assert torch.equal(tensor, mean), dtype
        transposed = values[rank].repeat(3, 1).t()
        dist.all_reduce(transposed, ReduceOp.AVG, async_op=True).wait()
        assert torch.equal(transposed, mean.repeat(3, 1).t()), dtype
        pair = [values[rank].clone(), values[rank].clone()]
        with dist._coalescing_manager():
            for one in pair:
                dist.all_reduce(one, ReduceOp.AVG)
        assert all(torch.equal(one, mean) for one in pair), dtype
        dist.all_reduce_coalesced(pair := [values[rank].clone(), values[rank].clone()], ReduceOp.AVG)
        assert all(torch.equal(one, mean) for one in pair), dtype
        tensor = values[rank].clone()
        dist.reduce(tensor, size - 1, ReduceOp.AVG)
        assert torch.equal(tensor, mean if rank == size - 1 else values[rank]), dtype
        part = torch.empty(4, dtype=dtype)
        dist.reduce_scatter_tensor(part, values[rank].repeat(size), ReduceOp.AVG)
        assert torch.equal(part, mean), dtype
        dist.reduce_scatter(part.zero_(), [values[rank]] * size, ReduceOp.AVG)
        assert torch.equal(part, mean), dtype
        uneven = torch.empty(1 + rank % 2, dtype=dtype)
        dist.reduce_scatter(uneven, [values[rank][: 1 + peer % 2] for peer in range(size)], ReduceOp.AVG)
        assert torch.equal(uneven, mean[: 1 + rank % 2]), dtype
    raised(ValueError, dist.all_reduce, torch.tensor([True]), ReduceOp.AVG)


def test_all_reduce_of_bools_is_or_and_and(rank, size):
    anyone = torch.tensor([rank == 0, False])
    dist.all_reduce(anyone, ReduceOp.MAX)
    assert anyone.tolist() == [True, False]
    everyone = torch.tensor([rank == 0, True])
    dist.all_reduce(everyone, ReduceOp.MIN)
    assert everyone.tolist() == [size == 1, True]


def test_all_reduce_sums_complex_numbers_and_refuses_their_maximum(rank, size):
    tensor = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64) * (rank + 1)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.tensor([1 + 2j, 3 - 1j]) * sum(range(1, size + 1)))
    raised(ValueError, dist.all_reduce, tensor, ReduceOp.MAX)
    work = dist.group.WORLD.allreduce([tensor.clone()])
    work.wait()
    message = raised(NotImplementedError, dist.group.WORLD.allreduce, tensor, ReduceOp.MAX)
    assert "all_reduce" in message
    assert "complex64" in message


def test_noncontiguous_tensors_are_reduced_in_place(rank, size):
    whole = own(rank, 60).reshape(6, 10)
    dist.all_reduce(whole.t())
    assert torch.equal(whole, sum(own(peer, 60) for peer in range(size)).reshape(6, 10))
    columns = own(rank, 60).reshape(6, 10)
    dist.all_reduce(columns[:, ::3], async_op=True).wait()
    expected = own(rank, 60).reshape(6, 10)
    expected[:, ::3] = sum(own(peer, 60) for peer in range(size)).reshape(6, 10)[:, ::3]
    assert torch.equal(columns, expected)
    image = own(rank, 48).reshape(1, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    dist.broadcast(image, 0)
    assert torch.equal(image, own(0, 48).reshape(1, 3, 4, 4))


def test_views_that_are_conjugated_or_negated_give_the_numbers_that_they_show(rank, size):
    group, number = dist.group.WORLD, torch.tensor([1 + 2j, 3 - 1j, 4j])
    view = number.clone().conj()
    assert view.is_contiguous()
    assert view.is_conj()
    received = view if rank == 0 else torch.zeros_like(number)
    group.broadcast([received], 0).wait()  # torch.distributed itself refuses such views
    assert torch.equal(received, number.conj())
    stored = number.clone()
    target = stored.conj() if rank else stored.clone()
    group.broadcast([target], 0).wait()
    assert torch.equal(target, number)
    assert torch.equal(stored, number.conj() if rank else number)  # written as it is stored
    reduced = [(number * (peer + 1)).conj() if peer else number for peer in range(size)]
    total = reduced[rank].clone() if rank == 0 else (number * (rank + 1)).conj()
    group.allreduce([total]).wait()
    assert torch.equal(total, sum(reduced))
    gathered = [torch.zeros(3, dtype=torch.complex64) for _ in range(size)]
    group.allgather([gathered], [view]).wait()
    assert all(torch.equal(one, number.conj()) for one in gathered)
    for shown in (view, view.expand(2, 3).t(), view.imag, view[:1].imag):
        assert torch.equal(_from_first(shown), shown)
    assert view[:1].imag.is_neg()
    assert view[:1].imag.is_contiguous()
    if size > 1 and rank == 0:
        group.send([view], 1, 0).wait()
    elif rank == 1:
        received = torch.zeros_like(number)
        group.recv([received], 0, 0).wait()
        assert torch.equal(received, number.conj())


def _from_first(tensor):
    """Return rank 0's tensor, which reaches the others in plain memory."""
    size = dist.get_world_size()
    output = torch.empty(tensor.shape, dtype=tensor.dtype)
    dist.group.WORLD.scatter([output], [[tensor] * size] if dist.get_rank() == 0 else [], 0).wait()
    return output


def test_leaf_parameters_are_reduced_in_place(rank, size):
    parameter = torch.nn.Parameter(own(rank, 10).reshape(2, 5).t())
    assert not parameter.is_contiguous()
    dist.all_reduce(parameter)
    assert torch.equal(parameter.detach(), sum(own(peer, 10) for peer in range(size)).reshape(2, 5).t())


def test_asynchronous_calls_end_in_order_and_in_place(rank, size):
    tensors = [own(rank, count) for count in (5, 100_000, 3, 50_000)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    assert all(isinstance(work, dist.Work) for work in works)
    for work in works:
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
    for tensor in tensors:
        assert torch.equal(tensor, sum(own(peer, tensor.numel()) for peer in range(size)))


def test_futures_hold_the_tensors(rank, size):
    tensor = own(rank, 1000)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    halves = future.then(lambda done: done.value()[0] / 2)
    assert torch.equal(halves.wait(), sum(own(peer, 1000) for peer in range(size)) / 2)
    outputs = [torch.empty(3) for _ in range(size)]
    gathered = dist.all_gather(outputs, own(rank, 3), async_op=True).get_future().wait()
    assert torch.equal(gathered[0][size - 1], own(size - 1, 3))


def test_works_without_a_wait_still_complete(rank, size):
    tensors = [own(rank, 100) for _ in range(50)]
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    assert all(torch.equal(tensor, sum(own(peer, 100) for peer in range(size))) for tensor in tensors)


def test_broadcast_reaches_all_from_every_root_in_every_type(rank, size):
    for root in range(size):
        for dtype in (*REDUCIBLE, torch.bool, torch.complex64, torch.complex128):
            tensor = own(rank, 100, dtype)
            dist.broadcast(tensor, root)
            assert torch.equal(tensor, own(root, 100, dtype)), (root, dtype)


def test_reduce_writes_only_the_roots_tensor(rank, size):
    for root in range(size):
        tensor = own(rank, 1000)
        dist.reduce(tensor, root)
        expected = sum(own(peer, 1000) for peer in range(size)) if rank == root else own(rank, 1000)
        assert torch.equal(tensor, expected)


def test_all_gather_collects_lists_of_equal_and_of_different_sizes(rank, size):
    for count in SIZES:
        outputs = [torch.empty(count) for _ in range(size)]
        dist.all_gather(outputs, own(rank, count))
        assert all(torch.equal(output, own(peer, count)) for peer, output in enumerate(outputs))
    outputs = [torch.empty(10 * peer + 1, 3) for peer in range(size)]
    dist.all_gather(outputs, own(rank, 30 * rank + 3).reshape(-1, 3))
    assert all(torch.equal(output.flatten(), own(peer, output.numel())) for peer, output in enumerate(outputs))


def test_all_gather_into_tensor_works_in_place_too(rank, size):
    output = torch.empty(size * 100)
    dist.all_gather_into_tensor(output, own(rank, 100))
    expected = torch.cat([own(peer, 100) for peer in range(size)])
    assert torch.equal(output, expected)
    output = torch.full((size * 100,), -1.0)
    part = output.narrow(0, rank * 100, 100)
    part.copy_(own(rank, 100))
    dist.all_gather_into_tensor(output, part)
    assert torch.equal(output, expected)
    stacked = torch.empty(size, 100, dtype=torch.bool)
    dist.all_gather_into_tensor(stacked, own(rank, 100, torch.bool))
    assert torch.equal(stacked[size - 1], own(size - 1, 100, torch.bool))


def test_reduce_scatter_in_all_its_forms(rank, size):
    whole = own(rank, size * 100)
    total = sum(own(peer, size * 100) for peer in range(size))
    mine = slice(rank * 100, (rank + 1) * 100)
    output = torch.empty(100)
    dist.reduce_scatter_tensor(output, whole)
    assert torch.equal(output, total[mine])
    dist.reduce_scatter_tensor(output, whole, ReduceOp.AVG)
    assert torch.allclose(output, total[mine] / size)
    dist.reduce_scatter(output, list(whole.chunk(size)))
    assert torch.equal(output, total[mine])
    inside = whole.clone()
    dist.reduce_scatter_tensor(inside[mine], inside)
    assert torch.equal(inside[mine], total[mine])
    inputs = [own(rank, peer + 1) for peer in range(size)]
    uneven = torch.empty(rank + 1)
    dist.reduce_scatter(uneven, inputs)
    assert torch.equal(uneven, sum(own(peer, rank + 1) for peer in range(size)))


def test_gather_and_scatter_between_root_and_all(rank, size):
    root = size - 1
    outputs = [torch.empty(5) for _ in range(size)] if rank == root else None
    dist.gather(own(rank, 5), outputs, dst=root)
    if rank == root:
        assert all(torch.equal(output, own(peer, 5)) for peer, output in enumerate(outputs))
    mine = torch.empty(5)
    dist.scatter(mine, [own(peer, 5) for peer in range(size)] if rank == root else None, src=root)
    assert torch.equal(mine, own(rank, 5))


def test_all_to_all_with_and_without_split_sizes(rank, size):
    source = torch.tensor([10 * rank + peer for peer in range(size)])
    output = torch.empty_like(source)
    dist.all_to_all_single(output, source)
    assert output.tolist() == [10 * peer + rank for peer in range(size)]
    rows = torch.arange(rank + 1).repeat(size).reshape(-1, 1).expand(-1, 2).contiguous() + 100 * rank
    received = torch.empty(sum(range(1, size + 1)), 2, dtype=rows.dtype)
    dist.all_to_all_single(received, rows, [peer + 1 for peer in range(size)], [rank + 1] * size)
    expected = torch.cat([torch.arange(peer + 1) + 100 * peer for peer in range(size)])
    assert torch.equal(received[:, 1], expected)
    to_first = torch.empty(3 * size if rank == 0 else 0)  # the other ranks receive no element
    dist.all_to_all_single(
        to_first, torch.full((3,), float(rank)), [3] * size if rank == 0 else [0] * size, [3] + [0] * (size - 1)
    )
    assert to_first.tolist() == [float(peer) for peer in range(size) for _ in range(3)] * (rank == 0)
    outputs = [torch.empty(peer + 1) for peer in range(size)]
    dist.all_to_all(outputs, [own(rank, rank + 1) for _ in range(size)])
    assert all(torch.equal(tensor, own(peer, peer + 1)) for peer, tensor in enumerate(outputs))
    if size > 1:
        message = raised(ValueError, dist.all_to_all_single, torch.empty(size + 1), torch.empty(size + 1))
        assert "split_sizes" in message


def test_send_and_receive_match_by_tag_and_from_any_source(rank, size):
    if size == 1:
        return
    if rank == 0:
        for tag in (7, 3):
            dist.send(torch.full((10,), float(tag)), 1, tag=tag)
        seen = set()
        for _ in range(size - 1):
            tensor = torch.empty(2)
            source = dist.recv(tensor)
            assert tensor.tolist() == [source, source]
            seen.add(source)
        assert seen == set(range(1, size))
        return
    if rank == 1:
        three, seven = torch.empty(10), torch.empty(10)
        works = [dist.irecv(three, 0, tag=3), dist.irecv(seven, 0, tag=7)]
        for work in works:
            work.wait()
        assert three.tolist() == [3.0] * 10
        assert seven.tolist() == [7.0] * 10
    dist.send(torch.full((2,), float(rank)), 0)


def test_batches_of_sends_and_receives(rank, size):
    sent, received = own(rank, 1000), torch.empty(1000)
    operations = [
        dist.P2POp(dist.isend, sent, (rank + 1) % size),
        dist.P2POp(dist.irecv, received, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert torch.equal(received, own((rank - 1) % size, 1000))


def test_object_collectives(rank, size):
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "payload": "x" * (10 * rank)})
    assert objects == [{"rank": peer, "payload": "x" * (10 * peer)} for peer in range(size)]
    shared = [{"from": rank}, [rank]]
    dist.broadcast_object_list(shared, src=size - 1)
    assert shared == [{"from": size - 1}, [size - 1]]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(("from", rank), gathered, dst=0)
    assert rank != 0 or gathered == [("from", peer) for peer in range(size)]
    mine = [None]
    dist.scatter_object_list(mine, [{"to": peer} for peer in range(size)] if rank == 0 else None, src=0)
    assert mine == [{"to": rank}]
    if size > 1 and rank == 0:
        dist.send_object_list(["hello", 1], dst=1)
    elif rank == 1:
        letters = [None, None]
        dist.recv_object_list(letters, src=0)
        assert letters == ["hello", 1]


def test_coalesced_calls(rank, size):
    tensors = [own(rank, 3), own(rank, 4).reshape(2, 2), own(rank, 2, torch.int64)]
    dist.all_reduce_coalesced(tensors[:2])
    dist.all_reduce(tensors[2])
    for tensor in tensors:
        assert torch.equal(tensor.flatten(), sum(own(peer, tensor.numel(), tensor.dtype) for peer in range(size)))
    with dist._coalescing_manager(async_ops=True) as manager:
        more = [own(rank, 10), own(rank, 20)]
        for tensor in more:
            dist.all_reduce(tensor)
    manager.wait()
    assert torch.equal(more[1], sum(own(peer, 20) for peer in range(size)))
    with dist._coalescing_manager():
        outputs = [torch.empty(size * 4), torch.empty(size * 2)]
        for output in outputs:
            dist.all_gather_into_tensor(output, own(rank, output.numel() // size))
    assert torch.equal(outputs[1], torch.cat([own(peer, 2) for peer in range(size)]))
    with dist._coalescing_manager():
        parts = [torch.empty(4), torch.empty(2)]
        for part in parts:
            dist.reduce_scatter_tensor(part, own(rank, part.numel() * size))
    total = sum(own(peer, 2 * size) for peer in range(size))
    assert torch.equal(parts[1], total[2 * rank : 2 * rank + 2])
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [own(rank, 2), own(rank, 3)])
    assert torch.equal(lists[size - 1][1], own(size - 1, 3))


def test_functional_collectives(rank, size):
    total = functional.all_reduce(own(rank, 10), "sum", dist.group.WORLD)
    assert torch.equal(total + 0, sum(own(peer, 10) for peer in range(size)))
    everything = functional.all_gather_tensor(own(rank, 10), 0, dist.group.WORLD)
    assert torch.equal(everything + 0, torch.cat([own(peer, 10) for peer in range(size)]))
    part = functional.reduce_scatter_tensor(own(rank, 10 * size), "sum", 0, dist.group.WORLD)
    assert torch.equal(part + 0, sum(own(peer, 10 * size) for peer in range(size))[10 * rank : 10 * rank + 10])
    exchanged = functional.all_to_all_single(own(rank, size), None, None, dist.group.WORLD)
    assert (exchanged + 0).shape == (size,)
    copied = functional.broadcast(own(rank, 10), 0, dist.group.WORLD)
    assert torch.equal(copied + 0, own(0, 10))
    several = functional.all_reduce_coalesced([own(rank, 2), own(rank, 3)], "sum", dist.group.WORLD)
    assert torch.equal(several[1] + 0, sum(own(peer, 3) for peer in range(size)))
    gathered = functional.all_gather_into_tensor_coalesced([own(rank, 2), own(rank, 3)], dist.group.WORLD)
    assert torch.equal(gathered[1] + 0, torch.cat([own(peer, 3) for peer in range(size)]))
    scattered = functional.reduce_scatter_tensor_coalesced([own(rank, 2 * size)], "sum", [0], dist.group.WORLD)
    assert scattered[0].shape == (2,)


def test_differentiable_collectives(rank, size):
    from torch.distributed.nn import functional as differentiable

    tensor = own(rank, 4).requires_grad_()
    differentiable.all_reduce(tensor, group=dist.group.WORLD).sum().backward()
    assert torch.equal(tensor.grad, torch.full((4,), float(size)))
    tensor = own(rank, 4).requires_grad_()
    torch.cat(differentiable.all_gather(tensor, group=dist.group.WORLD)).sum().backward()
    assert torch.equal(tensor.grad, torch.full((4,), float(size)))


def test_new_groups_are_independent_of_the_world(rank, size):
    evens = list(range(0, size, 2))
    group = dist.new_group(evens)
    if rank in evens:
        tensor = own(rank, 10)
        dist.all_reduce(tensor, group=group)
        assert torch.equal(tensor, sum(own(peer, 10) for peer in evens))
        root = torch.tensor([float(rank)])
        dist.broadcast(root, src=evens[-1], group=group)
        assert root.item() == evens[-1]
        assert dist.get_backend(group) == "smddp"
        assert dist.get_process_group_ranks(group) == evens
        assert dist.distributed_c10d._get_process_group_name(group) == group.group_name
        assert dist.distributed_c10d._resolve_process_group(group.group_name) is group
        dist.destroy_process_group(group)
    else:
        assert group == dist.GroupMember.NON_GROUP_MEMBER
    dist.barrier()
    subgroup, groups = dist.new_subgroups(group_size=1)
    assert subgroup.size() == 1
    assert len(groups) == size
    alone = own(rank, 3)
    dist.all_reduce(alone, group=subgroup)
    assert torch.equal(alone, own(rank, 3))


def test_groups_report_names_sizes_and_devices(rank, size):
    world = dist.group.WORLD
    assert (world.rank(), world.size(), world.name()) == (rank, size, "smddp")
    assert dist.get_backend() == "smddp"
    assert world._get_backend_name() == "smddp"
    assert torch.device("cpu") in world._device_types
    assert world._get_backend(torch.device("cpu")).name() == "smddp"
    assert world.group_desc
    assert world.get_group_store() is not None
    raised(NotImplementedError, world.split_group, [0])
    raised(NotImplementedError, world.merge_remote_group, None, 2)


def test_sequence_numbers_count_collectives(rank, size):
    world = dist.group.WORLD
    world._set_sequence_number_for_group()
    before = world._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    dist.barrier()
    assert world._get_sequence_number_for_group() == before + 2


def test_a_monitored_barrier_names_a_missing_rank(rank, size):
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.group.WORLD.barrier().wait()
    dist.group.WORLD.monitored_barrier(timedelta(seconds=10))
    if size == 1:
        return
    if rank == 0:
        message = raised(RuntimeError, dist.group.WORLD.monitored_barrier, timedelta(seconds=1))
        assert "rank 1" in message or "rank 2" in message


def test_a_shorter_timeout_is_used(rank, size):
    if size == 1:
        return
    dist.group.WORLD.set_timeout(timedelta(seconds=1))
    if rank == 0:
        message = raised(RuntimeError, dist.all_reduce, torch.ones(1))
        assert "rank 1" in message or "rank 2" in message


def test_a_timeout_in_options_takes_effect(rank, size):
    if size == 1:
        return
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=1)
    if rank == 0:
        began = time.monotonic()
        error = raised(RuntimeError, lambda: dist.group.WORLD.allreduce([torch.ones(2)], options).wait())
        assert "timeout after 1" in error, error
        assert time.monotonic() - began < 20
    else:
        time.sleep(3)


def test_ranks_that_come_late_and_early_agree(rank, size):
    random = Random(rank)
    for turn in range(60):
        tensors = [torch.full((10 + each,), rank + 1.0) for each in range(4)]
        works = []
        for tensor in tensors:
            time.sleep(random.random() * 3e-4)
            works.append(dist.all_reduce(tensor, async_op=True))
        for work in works[: turn % 5]:
            work.get_future().wait()
        for tensor, work in zip(tensors, works, strict=True):
            work.wait()
            assert torch.equal(tensor, torch.full_like(tensor, size * (size + 1) / 2))


def test_the_short_methods_of_a_group_work(rank, size):
    world = dist.group.WORLD
    tensor = own(rank, 4)
    world.allreduce(tensor, ReduceOp.MAX).wait()
    assert torch.equal(tensor, torch.stack([own(peer, 4) for peer in range(size)]).max(0).values)
    world.allreduce([tensor]).wait()
    tensor = own(rank, 4)
    world.broadcast(tensor, 0).wait()
    assert torch.equal(tensor, own(0, 4))
    world.reduce(tensor, 0, ReduceOp.SUM).wait()
    outputs = [torch.empty(4) for _ in range(size)]
    world.allgather(outputs, own(rank, 4)).wait()
    assert torch.equal(outputs[-1], own(size - 1, 4))
    part = torch.empty(1)
    world.reduce_scatter(part, [torch.full((1,), float(peer)) for peer in range(size)], ReduceOp.SUM).wait()
    assert part.item() == rank * size
    world.barrier(timedelta(seconds=10)).wait()


def test_unsupported_arguments_raise_with_their_name(rank, size):
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (2,))
    message = raised(NotImplementedError, dist.all_reduce, sparse)
    assert "all_reduce" in message
    assert "sparse" in message
    message = raised(NotImplementedError, dist.broadcast, torch.empty(1, device="meta"), 0)
    assert "meta" in message
    message = raised(ValueError, dist.group.WORLD.allreduce, [torch.ones(1), torch.ones(1)])
    assert "one tensor" in message
    raised(ValueError, dist.all_gather_into_tensor, torch.empty(size + 1), torch.empty(1))
    raised(ValueError, dist.all_reduce, torch.ones(2), ReduceOp.BAND)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)  # the group is still usable after these errors
    assert tensor.item() == size


def test_mismatched_collectives_of_ranks_raise(rank, size):
    if size == 1:
        return
    wrong = torch.ones(5) if rank == 0 else torch.ones(6)
    message = raised(RuntimeError, dist.all_reduce, wrong)
    assert "all" in message
    raised(RuntimeError, dist.all_reduce, torch.ones(1))


def test_an_abort_fails_the_waits_of_peers(rank, size):
    if size == 1:
        return
    if rank == 0:
        dist.group.WORLD.abort()
        return
    assert "aborted" in raised(RuntimeError, dist.all_reduce, torch.ones(1))
    failed = raised(RuntimeError, lambda: dist.all_reduce(torch.ones(1), async_op=True).wait())
    assert "aborted" in failed
