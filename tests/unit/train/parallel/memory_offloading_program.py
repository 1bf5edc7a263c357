"""Offloading of the inputs that checkpointing keeps. Functions `test_...()`; see `torch_programs`."""

import gc
import logging
import os
import resource
import tempfile
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from clary.train.parallel.memory import offloading, spill
from clary.train.parallel.memory.checkpointing import set_activation_checkpointing, use_offloader
from clary.train.parallel.memory.kept import Layout, PinnedCopy
from clary.train.parallel.memory.offloading import Offloader
from clary.train.parallel.memory.spill import SpillError

torch.set_num_threads(1)

WIDTH = 128
BATCH_BYTES = 256 * WIDTH * 4
TURN_S = 20.0  # limit of a wait for another thread


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, hidden, mask=None):
        out = self.drop(self.inner(hidden).tanh())
        return hidden + (out if mask is None else out * mask)


class Deep(nn.Module):
    def __init__(self, num=6):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(num))
        for block in self.blocks:
            set_activation_checkpointing(block)

    def forward(self, hidden, mask=None):
        hidden = self.first(hidden)
        for block in self.blocks:
            hidden = block(hidden, mask)
        return hidden


def batch(seed=3):
    return torch.randn(256, WIDTH, generator=torch.Generator().manual_seed(seed))


def gradients(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


def trained(model, *args, **kwargs):
    torch.manual_seed(2)
    model.zero_grad()
    out = model(*args, **kwargs)
    out.square().mean().backward()
    return [out.detach(), *gradients(model)]


def raised(function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller looks at it
        return error
    raise AssertionError("nothing was raised")


@contextmanager
def to_disk(**more):
    """Offload to a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        offloader = Offloader(Path(folder), **more)
        use_offloader(offloader)
        try:
            yield offloader
        finally:
            use_offloader(None)
            offloader.close()
            assert os.listdir(folder) == []


def written(offloader):
    """Wait until all pending writes have ended."""
    offloader._spill._writer.submit(lambda: None).result(TURN_S)


def assert_same(found, expected):
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_results_and_gradients_are_bitwise_equal():
    model = Deep()
    expected = trained(model, batch())
    for horizon in (1, 2, 100):
        with to_disk(horizon=horizon) as offloader:
            for _ in range(3):
                assert_same(trained(model, batch()), expected)
            counts = offloader.counts
            assert counts.offloaded_bytes == 3 * 6 * BATCH_BYTES
            assert counts.num_read + counts.num_never_left == 3 * 6


def test_written_tensors_leave_memory_and_their_space_in_the_file_is_reused():
    model = Deep()
    with to_disk(horizon=2) as offloader:
        for _ in range(4):
            out = model(batch())
            written(offloader)
            gc.collect()
            alive = [region for region in offloader._lanes[0] if region.is_alive]
            assert len(alive) == 6
            assert all(one()._original is None for region in alive for one in region.kept)
            assert (
                offloader._spill._extents.taken_bytes - sum(extent.size for extent in offloader._spill._given_back)
                == 6 * BATCH_BYTES
            )
            out.sum().backward()
            assert offloader._lanes.get(0, []) == []
        assert offloader.counts.num_read == 4 * 6
        assert offloader._spill._extents.end == 6 * BATCH_BYTES
        del out


def loading(offloader):
    """Return for every lane the indices of the regions that are being read."""
    return {
        number: [place for place, region in enumerate(lane) if all(one()._reading for one in region.kept)]
        for number, lane in offloader._lanes.items()
    }


def test_at_most_the_horizon_is_read_ahead_and_the_last_region_first():
    model, seen = Deep(), []
    with to_disk(horizon=2) as offloader:
        for block in model.blocks:
            block.inner.register_full_backward_pre_hook(lambda *_: seen.append(loading(offloader)))
        out = model(batch())
        written(offloader)
        assert loading(offloader) == {0: []}
        out.sum().backward()
    assert seen == [{0: [3, 4]}, {0: [2, 3]}, {0: [1, 2]}, {0: [0, 1]}, {0: [0]}, {}]


def test_microbatches_are_read_in_the_announced_order_of_their_backward():
    model = Deep(num=3)
    with to_disk(horizon=2) as offloader:
        outs = []
        for number in range(3):
            with offloader.lane(number):
                outs.append(model(batch(number)))
        written(offloader)
        offloader.expect(2)
        offloader.expect(0)
        assert loading(offloader) == {0: [], 1: [], 2: [1, 2]}
        outs[2].sum().backward()
        assert loading(offloader) == {0: [1, 2], 1: []}
        outs[0].sum().backward()
        outs[1].sum().backward()
        assert offloader._lanes == {}


def test_microbatches_in_any_order_give_bitwise_equal_gradients():
    model, num = Deep(), 4

    def accumulated(order):
        torch.manual_seed(2)
        model.zero_grad()
        outs = [model(batch(number)) for number in range(num)]
        for number in order:
            outs[number].square().mean().backward()
        return gradients(model)

    for order in ((3, 2, 1, 0), (1, 3, 0, 2)):
        expected = accumulated(order)
        with to_disk(horizon=3):
            assert_same(accumulated(order), expected)


def test_a_slow_disk_blocks_forward_and_changes_no_result():
    model, turns = Deep(), threading.Semaphore(0)
    expected = trained(model, batch())
    with to_disk(horizon=2, max_waiting_bytes=2 * BATCH_BYTES) as offloader:
        slow, most = offloader._spill._write, []

        def write(*arguments):
            assert turns.acquire(timeout=TURN_S)
            most.append(offloader._spill._waiting_bytes)
            slow(*arguments)

        offloader._spill._write = write
        found = []
        step = threading.Thread(target=lambda: found.extend(trained(model, batch())))
        step.start()
        for _ in range(6):
            turns.release()
        step.join(TURN_S)
        assert_same(found, expected)
        assert most
        assert max(most) <= 2 * BATCH_BYTES


def test_a_tensor_that_is_needed_before_its_write_is_not_written():
    model, turn = Deep(), threading.Event()
    expected = trained(model, batch())
    with to_disk() as offloader:
        offloader._spill._writer.submit(turn.wait, TURN_S)
        assert_same(trained(model, batch()), expected)
        turn.set()
        written(offloader)
        assert offloader.counts.num_never_left == 6
        assert offloader.counts.num_read == 0


def test_layers_that_share_a_mask_share_its_offloaded_copy():
    model, mask = Deep(), torch.rand(256, 1).expand(256, WIDTH).contiguous()
    expected = trained(model, batch(), mask)
    with to_disk() as offloader:
        assert_same(trained(model, batch(), mask), expected)
        assert offloader.counts.offloaded_bytes == 7 * BATCH_BYTES


def test_threads_that_keep_one_tensor_at_once_share_its_copy():
    mask, outs, taken, both = batch(), [], [], threading.Event()
    with to_disk() as offloader:
        take = offloader._take

        def slow(tensor):
            taken.append(tensor)
            both.wait(0.5) if len(taken) == 1 else both.set()
            return take(tensor)

        def forward():
            with offloader.region([]):
                outs.append(torch.ones(256, WIDTH, requires_grad=True) * mask)

        offloader._take = slow
        threads = [threading.Thread(target=forward) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TURN_S)
        assert len(outs) == 2
        assert len(taken) == 1
        assert offloader.counts.offloaded_bytes == BATCH_BYTES
        for out in outs:
            out.sum().backward()


def test_small_tensors_and_parameters_stay_in_memory():
    model = Deep()

    class Takes(nn.Module):
        def forward(self, hidden, weight, small):
            return (hidden @ weight).tanh() * small

    takes = Takes()
    set_activation_checkpointing(takes)
    with to_disk() as offloader:
        takes(model.first(batch()), nn.Parameter(torch.eye(WIDTH)), torch.ones(WIDTH)).sum().backward()
        assert offloader.counts.offloaded_bytes == BATCH_BYTES
        assert offloader.counts.staying_bytes == (WIDTH * WIDTH + WIDTH) * 4


def test_a_second_backward_reads_again():
    model = Deep(num=2)
    with to_disk() as offloader:
        torch.manual_seed(2)
        out = model(batch()).square().mean()
        written(offloader)
        out.backward(retain_graph=True)
        first = gradients(model)
        model.zero_grad()
        out.backward()
        assert_same(gradients(model), first)
        assert offloader.counts.num_read == 4


def test_checkpoints_inside_checkpoints_are_not_offloaded():
    outer = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block())
    set_activation_checkpointing(outer[1])
    whole = Deep(num=0)
    whole.blocks.append(outer)
    set_activation_checkpointing(outer, strategy="contiguous")

    def forward(hidden, mask=None):
        return outer(whole.first(hidden))

    whole.forward = forward
    expected = trained(whole, batch())
    with to_disk() as offloader:
        assert_same(trained(whole, batch()), expected)
        assert offloader.counts.offloaded_bytes == BATCH_BYTES


def test_tensors_are_restored_with_their_layout():
    base = torch.randn(4, 6, 8)
    cases = [base, base.transpose(0, 2), base[:, ::2], base[1:3, :, 5], base[:1].expand(5, 6, 8), base[0, 0, 0]]
    cases += [base[:, ::5, :1].expand(4, 2, 3), base[::3, :1, ::7].expand(2, 6, 2), base[:, :4:3, 0].unfold(0, 2, 1)]
    for tensor in [*cases, base.bfloat16().permute(2, 0, 1), base > 0, base.long()[:, 1]]:
        layout = Layout.of(tensor)
        flat = layout.pack(tensor)
        assert flat.numel() == layout.num_packed <= tensor.numel()
        found = layout.unpack(flat.clone())
        assert torch.equal(found, tensor)
        assert found.stride() == tensor.stride()
        assert found.dtype == tensor.dtype


def test_a_change_in_place_before_the_write_is_refused():
    model = Deep(num=1)
    for is_written_late in (False, True):
        turn = threading.Event()
        with to_disk() as offloader:
            offloader._spill._writer.submit(turn.wait, TURN_S)
            hidden = model.first(batch())
            out = model.blocks[0](hidden)
            with torch.no_grad():
                hidden.mul_(2)
            turn.set()
            if is_written_late:
                written(offloader)
            error = raised(out.sum().backward)
        assert "shape (256, 128) that a checkpointed module was given has been changed in place" in str(error)


def test_a_change_in_place_after_the_write_is_refused_too():
    model = Deep(num=1)
    with to_disk() as offloader:
        hidden = model.first(batch())
        out = model.blocks[0](hidden)
        written(offloader)
        with torch.no_grad():
            hidden.mul_(2)
        assert "has been changed in place" in str(raised(out.sum().backward))


class FakeStream:
    """A stream whose copies are complete at once."""

    def wait_stream(self, stream):
        pass

    def wait_event(self, event):
        pass

    def record_event(self):
        return None


@contextmanager
def pretending_to_have_a_gpu():
    """Replace the functions of CUDA that `kept` calls by functions without effect."""
    empty = torch.empty
    with (
        mock.patch.object(torch.cuda, "stream", return_value=nullcontext()),
        mock.patch.object(torch.cuda, "current_stream", return_value=FakeStream()),
        mock.patch.object(torch.Tensor, "record_stream", return_value=None),
        mock.patch.object(torch, "empty", lambda *sizes, pin_memory=False, **more: empty(*sizes, **more)),
    ):
        yield


def test_a_pinned_copy_is_restored_and_refused_if_its_tensor_was_changed():
    with pretending_to_have_a_gpu():
        for tensor in (torch.randn(6, 4), torch.randn(6, 4)[::2, :1].expand(3, 5)):
            kept = PinnedCopy(tensor, FakeStream())
            for _ in range(2):
                kept.load()
                assert torch.equal(kept.bring(), tensor)
        tensor = torch.randn(6, 4)
        kept, view, weak = PinnedCopy(tensor, FakeStream()), tensor[1:], StorageWeakRef(tensor.untyped_storage())
        view.add_(1)
        for _ in range(2):
            assert "shape (6, 4) that a checkpointed module was given has been changed" in str(raised(kept.bring))
        del tensor, view
        assert weak.expired()


def test_a_full_disk_is_reported_in_forward_with_the_folder():
    model = Deep()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with to_disk() as offloader:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 * BATCH_BYTES + 100, hard))
        try:
            error = raised(model, batch())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert isinstance(error, SpillError)
        assert f"{offloader._spill.folder} has no room for {BATCH_BYTES} more bytes" in str(error)
        assert f"{3 * BATCH_BYTES} bytes are reserved" in str(error)


def test_a_failing_disk_is_reported_when_the_tensor_is_needed():
    model = Deep(num=1)
    with to_disk() as offloader:
        out = model(batch())
        written(offloader)
        os.ftruncate(offloader._spill._file, 10)
        error = raised(out.sum().backward)
        assert isinstance(error, SpillError)
        assert f"the file in {offloader._spill.folder} ends" in str(error)
    with to_disk() as offloader:
        disk, own = offloader._spill, offloader._spill._file
        disk._length = BATCH_BYTES  # the space is reserved already, so that only the write fails
        disk._file = os.open("/dev/null", os.O_RDONLY)
        out = model(batch())
        written(offloader)
        error = raised(out.sum().backward)
        os.close(own)
        assert isinstance(error, SpillError)
        assert f"{BATCH_BYTES} bytes could not be written to {disk.folder}" in str(error)


def test_the_wait_for_a_hanging_disk_is_limited():
    model, turn = Deep(), threading.Event()
    limit = spill.WAIT_LIMIT_S
    with to_disk(max_waiting_bytes=BATCH_BYTES) as offloader:
        offloader._spill._writer.submit(turn.wait, TURN_S)
        spill.WAIT_LIMIT_S = 0.05
        try:
            error = raised(model, batch())
        finally:
            spill.WAIT_LIMIT_S = limit
            turn.set()
        assert isinstance(error, SpillError)
        assert "the disk does not answer" in str(error)


def test_a_folder_in_which_no_file_can_be_created_is_refused():
    error = raised(Offloader, Path("/proc/nothing"))
    assert isinstance(error, SpillError)
    assert "no file can be made in /proc/nothing" in str(error)
    assert "expected 1 or more" in str(raised(Offloader, horizon=0))


def test_offloading_to_host_memory_without_a_gpu_copies_no_tensor_and_logs_it_once():
    model, messages = Deep(), []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    offloading._log.addHandler(handler)
    expected = trained(model, batch())
    offloader = Offloader()
    use_offloader(offloader)
    try:
        for _ in range(2):
            assert_same(trained(model, batch()), expected)
    finally:
        use_offloader(None)
        offloading._log.removeHandler(handler)
    assert offloader.counts.offloaded_bytes == 0
    assert len(messages) == 1
    assert "nothing is copied" in messages[0]
