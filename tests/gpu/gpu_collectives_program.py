"""Collectives of backend smddp on tensors of a GPU that all ranks share. Functions `test_...(rank, size)`."""

import torch
import torch.distributed as dist
from gpu_world import gpu, real_gpu

from clary.train.collective.adapters.torch.devices import Path, choose_path, own_placement

NUM_ELEMENTS = 5_000_003  # several segments of the way through host memory, the last one small


def test_collectives_of_tensors_of_a_gpu(rank, size):
    device = gpu()
    total = size * (size + 1) // 2
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
        ours = torch.full((NUM_ELEMENTS,), rank + 1, dtype=dtype, device=device)
        dist.all_reduce(ours)
        assert bool((ours == total).all()), (dtype, ours[:4])
    # What comes before and after is on the program's stream, and nobody waits on the host.
    ours = torch.zeros(NUM_ELEMENTS, device=device)
    for _ in range(50):
        ours += (rank + 1) / 50
    work = dist.all_reduce(ours, async_op=True)
    work.wait()
    doubled = ours * 2
    torch.testing.assert_close(doubled.cpu(), torch.full((NUM_ELEMENTS,), 2.0 * total), rtol=1e-4, atol=1e-4)
    told = torch.full((3,), float(rank), device=device)
    dist.broadcast(told, src=size - 1)
    assert told.tolist() == [size - 1] * 3
    gathered = torch.empty(size * 3, device=device)
    dist.all_gather_into_tensor(gathered, torch.full((3,), float(rank), device=device))
    assert gathered.tolist() == [float(one) for one in range(size) for _ in range(3)]
    part = torch.empty(3, device=device)
    dist.reduce_scatter_tensor(part, torch.arange(3.0 * size, device=device))
    assert part.tolist() == [size * (3.0 * rank + place) for place in range(3)]
    swapped = torch.empty(size, device=device)
    dist.all_to_all_single(swapped, torch.full((size,), float(rank), device=device))
    assert swapped.tolist() == [float(one) for one in range(size)]
    dist.barrier()
    if size == 2:
        peer = 1 - rank
        mine, theirs = torch.full((1 << 20,), float(rank), device=device), torch.empty(1 << 20, device=device)
        sending = dist.isend(mine, peer)
        dist.recv(theirs, peer)
        sending.wait()
        assert bool((theirs == peer).all())


def test_the_way_of_tensors_is_chosen(rank, size):
    placement = own_placement(real_gpu("a GPU that is made up has no name that ranks could compare"))
    gathered = [None] * size
    dist.all_gather_object(gathered, placement)
    path, reason = choose_path(gathered)
    if size > 1 and gathered[0].device == gathered[1].device:
        assert path is Path.STAGED, reason
        assert "share GPU" in reason
    elif gathered[0].has_nccl:
        assert path is Path.NCCL, reason
