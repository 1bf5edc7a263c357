"""CUDA tensors' two ways: how one is chosen, and the one through host memory with streams that are fakes."""

import contextlib
import threading
import time

import torch
from torch.distributed import AllreduceOptions, BroadcastOptions, ReduceOp, ReduceOptions

from clary.train._native.errors import PeerLost
from clary.train.collective.adapters.torch.devices import Path, Placement, choose_path, decode, encode
from clary.train.collective.adapters.torch.staging import StagedGroup
from clary.train.collective.adapters.torch.work import EndedWork, JointWork

_SOON_S = 5.0


class FakeStreams:
    """Copies at once, and logs the requested copies."""

    def __init__(self):
        self.log = []

    def to_host(self, tensor):
        self.log.append("down")
        return tensor.detach().clone(), lambda: self.log.append("arrived")

    def host_space(self, tensor):
        self.log.append("space")
        return torch.full_like(tensor, float("nan"), requires_grad=False), lambda: self.log.append("free")

    def to_device(self, source, target):
        self.log.append("up")
        with torch.no_grad():
            target.copy_(source)

    def up_mark(self):
        return lambda: self.log.append("ordered")

    def going_up(self):
        return contextlib.nullcontext()

    def make_future(self):
        return torch.futures.Future()


class SlowWork(EndedWork):
    """Ends when its gate is opened."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def wait(self, timeout=None):
        assert self.gate.wait(_SOON_S)
        return True


class FailedWork(EndedWork):
    """Ends with an error."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def wait(self, timeout=None):
        raise self.error


class FakeHost:
    """A group of two on host memory, whose other rank has the same tensors."""

    def __init__(self):
        self.seen = []
        self.gate = threading.Event()
        self.gate.set()
        self.error = None
        self.sent = []

    def send(self, tensors, dst, tag):
        if self.error is not None:
            raise self.error
        self.sent.append((tensors[0].item(), dst, tag))
        return SlowWork(self.gate)

    _own_rank = 0

    def broadcast(self, tensors, opts):
        if opts.rootRank != self._own_rank:
            tensors[0].fill_(5)
        return EndedWork(tensors)

    def reduce(self, tensors, opts):
        if opts.rootRank == self._own_rank:
            tensors[0].mul_(2)
        return EndedWork(tensors)

    def allreduce(self, tensors, opts):
        assert self.gate.wait(_SOON_S)
        if self.error is not None:
            raise self.error
        self.seen.append(tensors[0].numel())
        tensors[0].mul_(2)
        return EndedWork(tensors)

    def _allgather_base(self, output, source, opts):
        output.copy_(torch.cat([source, source]))
        return EndedWork([output])

    def _reduce_scatter_base(self, output, source, opts):
        output.copy_(source[: output.numel()] * 2)
        return EndedWork([output])

    def allreduce_coalesced(self, tensors, opts):
        return JointWork([self.allreduce([tensor], opts) for tensor in tensors], tensors)

    def allgather(self, outputs, sources, opts):
        for output in outputs[0]:
            output.copy_(sources[0])
        return EndedWork(outputs)

    def recv(self, tensors, src, tag):
        if self.error is not None:  # as the core, which leaves the tensor as it is
            return FailedWork(self.error)
        tensors[0].fill_(7)
        work = SlowWork(self.gate)
        work.source_rank = lambda: src
        return work


def group(segment_bytes=1 << 20):
    host, streams = FakeHost(), FakeStreams()
    return StagedGroup(host, streams, segment_bytes), host, streams


def options():
    made = AllreduceOptions()
    made.reduceOp = ReduceOp.SUM
    return made


def test_a_gpu_for_every_rank_goes_by_nccl():
    path, reason = choose_path([Placement("a", True), Placement("b", True)])
    assert path is Path.NCCL
    assert "own" in reason


def test_two_ranks_on_one_gpu_are_staged_and_both_are_named():
    path, reason = choose_path([Placement("a", True), Placement("b", True), Placement("a", True)])
    assert path is Path.STAGED
    assert "ranks 0 and 2" in reason
    assert "GPU a" in reason


def test_a_rank_without_a_gpu_or_without_nccl_is_named():
    assert choose_path([Placement("a", True), Placement("", True)]) == (Path.STAGED, "rank 1 has no GPU")
    path, reason = choose_path([Placement("a", True), Placement("b", False)])
    assert path is Path.STAGED
    assert "rank 1 has no NCCL" in reason


def test_placements_travel_as_bytes():
    for placement in (Placement("GPU-1234-abcd", True), Placement("", False)):
        assert decode(encode(placement)) == placement


def test_an_all_reduce_is_cut_into_segments_that_come_down_before_the_first_goes_up():
    staged, host, streams = group(segment_bytes=40)
    tensor = torch.arange(25.0)
    staged.allreduce([tensor], options()).wait()
    assert torch.equal(tensor, torch.arange(25.0) * 2)
    assert host.seen == [10, 10, 5]
    assert streams.log[:3] == ["down"] * 3
    assert streams.log[3:9] == ["arrived", "up"] * 3
    assert streams.log[9:] == ["ordered"]


def test_a_tensor_in_pieces_is_reduced_in_place():
    staged, _, _ = group()
    whole = torch.arange(12.0).reshape(3, 4)
    staged.allreduce([whole.t()], options()).wait()
    assert torch.equal(whole, torch.arange(12.0).reshape(3, 4) * 2)


def test_outputs_are_copied_back_and_inputs_are_not():
    staged, _, streams = group()
    output, source = torch.empty(4), torch.ones(2)
    staged._allgather_base(output, source, None).wait()
    assert output.tolist() == [1.0] * 4
    assert streams.log.count("down") == 2
    assert streams.log.count("up") == 1


def test_an_output_inside_the_input_keeps_its_result():
    staged, _, _ = group()
    whole = torch.ones(4)
    staged._reduce_scatter_base(whole[:2], whole, None).wait()
    assert whole.tolist() == [2.0, 2.0, 1.0, 1.0]


def test_lists_of_lists_are_staged_too():
    staged, _, _ = group()
    outputs = [torch.empty(2), torch.empty(2)]
    staged.allgather([outputs], [torch.ones(2)], None).wait()
    assert all(output.tolist() == [1.0, 1.0] for output in outputs)


def test_an_operation_of_several_works_is_staged():
    staged, _, _ = group()
    tensors = [torch.ones(2), torch.ones(3, dtype=torch.int64)]
    work = staged.allreduce_coalesced(tensors, None)
    work.wait()
    assert [tensor.tolist() for tensor in tensors] == [[2.0, 2.0], [2, 2, 2]]
    assert work.source_rank() == -1


def test_futures_hold_the_tensors_and_errors_are_raised():
    staged, host, _ = group()
    tensor = torch.ones(2)
    assert staged.allreduce([tensor], options()).get_future().wait()[0] is tensor
    host.error = PeerLost("rank 1 died")
    work = staged.allreduce([tensor], options())
    for wait in (work.wait, work.get_future().wait):
        try:
            wait()
        except RuntimeError as error:
            told = str(error)
        else:
            told = "nothing was raised"
        assert "rank 1 died" in told
    assert work.is_completed()
    assert not work.is_success()


def test_a_receive_that_waits_does_not_hold_up_collectives():
    staged, host, _ = group()
    host.gate.clear()
    received = torch.zeros(1)
    receive = staged.recv([received], 1, 0)
    gathered = torch.empty(4)
    staged._allgather_base(gathered, torch.ones(2), None).wait()
    assert not receive.is_completed()
    host.gate.set()
    receive.wait()
    assert received.item() == 7
    assert receive.source_rank() == 1
    staged.close()


def test_a_tensor_that_is_only_sent_is_not_written_and_has_gradients():
    staged, host, streams = group()
    weight = torch.tensor([3.0], requires_grad=True)
    activation = weight.exp()
    staged.send([activation], 1, 0).wait()
    assert host.sent == [(activation.item(), 1, 0)]
    assert "up" not in streams.log
    assert activation._version == 0
    activation.backward()
    assert torch.equal(weight.grad, activation.detach())
    staged.close()


def test_a_receive_takes_room_and_copies_nothing_to_the_host():
    staged, _, streams = group()
    received = torch.zeros(2)
    assert staged.recv([received], 1, 0).result() == [received]
    staged._messages.drain()
    staged.recv([received], 1, 0).wait()
    assert received.tolist() == [7.0, 7.0]
    assert "down" not in streams.log
    assert streams.log.count("space") == streams.log.count("free") == streams.log.count("up") == 2
    staged.close()


def test_a_receive_of_another_length_than_its_message_fails_and_leaves_the_tensor_as_it_is():
    staged, host, streams = group()
    host.error = RuntimeError("a message of 4 bytes met a receive of 12 bytes; name the same size on both sides")
    received = torch.arange(3.0)
    work = staged.recv([received], 1, 0)
    try:
        work.wait()
    except RuntimeError as error:
        told = str(error)
    assert "met a receive of 12 bytes" in told
    assert received.tolist() == [0.0, 1.0, 2.0]
    assert "up" not in streams.log
    staged.close()


def test_the_root_of_a_broadcast_and_the_others_of_a_reduction_keep_their_tensors_unwritten():
    staged, _, streams = group()
    for operation, options_kind, is_written_at_root in (
        ("broadcast", BroadcastOptions, False),
        ("reduce", ReduceOptions, True),
    ):
        for root in (0, 1):
            opts = options_kind()
            opts.rootRank = root
            streams.log.clear()
            tensor = torch.ones(2)
            getattr(staged, operation)([tensor], opts).wait()
            is_written = (root == 0) == is_written_at_root
            assert streams.log.count("up") == int(is_written), (operation, root)
            assert tensor._version == int(is_written)
            assert tensor.tolist() == [(5.0 if operation == "broadcast" else 2.0) if is_written else 1.0] * 2
    staged.close()


def test_messages_of_one_tag_begin_in_the_order_of_their_calls():
    staged, host, streams = group()
    copied = threading.Event()

    def to_host(tensor):  # the first copy takes the longest
        return tensor.clone(), (lambda: None) if tensor.item() else (lambda: copied.wait(0.3))

    streams.to_host = to_host
    host.gate.clear()  # no message ends meanwhile
    works = [staged.send([torch.tensor(float(number))], 1, 5) for number in range(20)]
    deadline = time.monotonic() + _SOON_S
    while len(host.sent) < 20 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert host.sent == [(float(number), 1, 5) for number in range(20)]
    assert not any(work.is_completed() for work in works)
    host.gate.set()
    for work in works:
        work.wait()
    staged.close()


def test_a_message_that_cannot_begin_fails_alone():
    staged, host, _ = group()
    host.error = ValueError("there is no rank 9")
    failed = staged.send([torch.zeros(1)], 9, 0)
    try:
        failed.wait()
    except ValueError as error:
        told = str(error)
    assert told == "there is no rank 9"
    host.error = None
    staged.send([torch.ones(1)], 1, 0)
    staged.drain_messages()
    assert host.sent == [(1.0, 1, 0)]
    staged.close()


def test_operations_go_on_after_the_end_of_one_could_not_be_told():
    staged, _, streams = group()
    good, streams.up_mark = streams.up_mark, lambda: 1 / 0
    failed = staged.allreduce([torch.ones(1)], options())
    try:
        failed.wait()
    except ZeroDivisionError:
        streams.up_mark = good
    streams.going_up = lambda: 1 / 0
    staged.allreduce([torch.ones(1)], options())
    staged._collectives.drain()
    del streams.going_up
    tensor = torch.ones(1)
    staged.allreduce([tensor], options()).wait()
    assert tensor.item() == 2
    staged.close()


def test_operations_after_the_close_end_with_the_error_of_the_group():
    staged, host, _ = group()
    staged.send([torch.ones(1)], 1, 0).wait()
    staged.close()
    host.error = PeerLost("the group was closed")
    staged.drain_messages()
    for work in (staged.send([torch.ones(1)], 1, 0), staged.allreduce([torch.ones(1)], options())):
        assert work.is_completed()
        assert isinstance(work.exception(), PeerLost)
