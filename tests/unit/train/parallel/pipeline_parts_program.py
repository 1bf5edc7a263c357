"""Parts of the pipeline that need torch; `test_pipeline_parts` runs them."""

import socket
import threading
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn

from clary.train.parallel.errors import ParallelError, RankLost
from clary.train.parallel.marks import mark, marking, marks_of
from clary.train.parallel.partition.placement import Placed, describe, owners_of, release_others
from clary.train.parallel.partition.trace import costs_by_size, trace_costs
from clary.train.parallel.pipeline.links import Links, PeerLost
from clary.train.parallel.pipeline.messages import (
    HEAD_LENGTH,
    CallId,
    Message,
    Subject,
    decode,
    encode,
    put_tensors,
    take_tensors,
)
from clary.train.parallel.pipeline.server import Neighbours, Server
from clary.train.parallel.pipeline.workers import Abandoned, WorkerPool, own_worker


@dataclass
class Output(OrderedDict):
    """Like transformers' results: a mapping whose keys are fields."""

    loss: object = None
    logits: object = None

    def __post_init__(self):
        self["loss"], self["logits"] = self.loss, self.logits


def failure_of(kind, call):
    """Return the exception of a call; fail if the call succeeds."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def there_and_back(message):
    sent = b"".join(bytes(buffer) for buffer in encode(message))
    (length,) = HEAD_LENGTH.unpack(sent[: HEAD_LENGTH.size])
    rest = memoryview(sent)[HEAD_LENGTH.size + length :]
    position = 0

    def read(buffer):
        nonlocal position
        view = memoryview(buffer)
        view[:] = rest[position : position + len(view)]
        position += len(view)

    found = decode(sent[HEAD_LENGTH.size : HEAD_LENGTH.size + length], read)
    assert position == len(rest)
    return found


def test_tensors_of_every_kind_are_transmitted():
    tensors = [
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor(2.5),
        torch.zeros(0, 4),
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.randn(2, 2, requires_grad=True),
        torch.complex(torch.ones(2), torch.zeros(2)),
    ]
    found = there_and_back(Message(Subject.FORWARD, CallId(0, 1, 2), ("name", None), tensors))
    assert found.call == CallId(0, 1, 2)
    for got, sent in zip(found.tensors, tensors, strict=True):
        assert got.dtype == sent.dtype
        assert torch.equal(got, sent.detach())


def test_containers_keep_their_types():
    value = {"a": [torch.ones(1), (2, torch.zeros(2))], "b": Output(loss=torch.ones(()), logits=None), "c": {1, 2}}
    tensors = []
    structure = take_tensors(value, tensors)
    assert len(tensors) == 3
    found = put_tensors(structure, tensors)
    assert type(found["b"]) is Output
    assert found["b"].loss is value["b"].loss
    assert found["a"][1] == (2, value["a"][1][1])
    assert found["c"] == {1, 2}


def linked(timeout_s=5.0):
    ours, theirs = socket.socketpair()
    return Links({1: ours}, timeout_s=timeout_s), Links({0: theirs}, timeout_s=timeout_s)


def test_two_ranks_may_send_large_messages_to_each_other_at_once():
    left, right = linked()
    big = torch.randn(4 << 20)
    sender = threading.Thread(target=left.send, args=(1, Message(Subject.OUTPUT, None, "left", [big])))
    sender.start()
    right.send(0, Message(Subject.OUTPUT, None, "right", [big]))
    sender.join(10)
    assert not sender.is_alive()
    for links, words in ((left, "right"), (right, "left")):
        _, message = links.receive(10)
        assert message.body == words
        assert torch.equal(message.tensors[0], big)
    left.close()
    right.close()


def test_a_peer_that_ends_is_lost_at_once_and_permanently():
    left, right = linked()
    right.close()
    for _ in range(2):
        lost = failure_of(PeerLost, lambda: left.receive(10))
        assert lost.peer == 1
        assert "ended" in str(lost)
    left.close()


def test_a_peer_that_does_not_read_is_lost_after_the_timeout():
    ours, theirs = socket.socketpair()
    left = Links({1: ours}, timeout_s=0.2)
    big = Message(Subject.OUTPUT, None, None, [torch.zeros(8 << 20)])
    assert "sending output failed" in str(failure_of(PeerLost, lambda: left.send(1, big)))
    left.close()
    theirs.close()


def test_a_receive_without_a_message_times_out():
    left, right = linked()
    assert "0.05 s" in str(failure_of(TimeoutError, lambda: left.receive(0.05)))
    left.close()
    right.close()


def test_a_peer_may_leave_as_soon_as_it_has_ended_its_step():
    ours, theirs = socket.socketpair()
    first, second = Links({1: ours}, timeout_s=5), Links({0: theirs}, timeout_s=5)
    server = Server(
        second, Neighbours((0, 1), 1), serve=lambda message: message, policy="interleaved", max_active=1, timeout_s=5
    )
    first.send(1, Message(Subject.STEP_END, None, [7], []))
    first.close()
    peer, found = second._inbox.get(timeout=5)  # both messages have arrived before the step reads them
    lost = second._inbox.get(timeout=5)
    second._inbox.put((peer, found))
    second._inbox.put(lost)
    assert server.run(None) == [7]
    assert "its process has ended" in str(failure_of(RankLost, lambda: server.run(None)))
    assert failure_of(ParallelError, lambda: server.run(None)), "a step that failed stays failed"
    server.close()


def test_workers_run_one_at_a_time_in_turn():
    pool, seen = WorkerPool(), []
    workers = [pool.take() for _ in range(3)]

    def run(name):
        for step in range(3):
            seen.append((name, step))
            assert own_worker().wait() == f"{name}{step}"
        return name

    for name, worker in enumerate(workers):
        worker.begin(name, lambda name=name: run(name))
    for step in range(3):
        for name, worker in enumerate(workers):
            assert not worker.is_done
            worker.answer = f"{name}{step}"
            worker.go_on()
    assert [worker.result for worker in workers] == [0, 1, 2]
    assert seen == [(name, step) for step in range(3) for name in range(3)]


def test_an_abandoned_worker_ends_whatever_it_catches():
    worker = WorkerPool().take()

    def run():
        try:
            own_worker().wait()
        except Exception:  # noqa: BLE001 - as user code does
            raise AssertionError("Abandoned is no Exception") from None

    worker.begin("task", run)
    worker.answer = Abandoned()
    worker.go_on()
    assert worker.is_done
    assert isinstance(worker.error, Abandoned)


def test_workers_inherit_the_modes_of_the_starting_thread():
    worker = WorkerPool().take()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        worker.begin("task", lambda: (torch.is_grad_enabled(), torch.ones(2, 2) @ torch.ones(2, 2)))
    enabled, product = worker.result
    assert not enabled
    assert product.dtype == torch.bfloat16


def test_modules_without_parameters_run_with_their_children_or_their_parent():
    names = ["", "a", "a.act", "a.one", "a.two", "b", "b.one", "b.two", "b.act", "act"]
    has_state = {"a.one", "a.two", "b.one", "b.two"}
    modules = [Placed(name, name in has_state) for name in names]
    owners = owners_of(modules, {"a.one": 0, "a.two": 1, "b.one": 1, "b.two": 1, "act": 1, "a.act": 1})
    assert owners == {
        "": 0, "a": 0, "a.act": 0, "a.one": 0, "a.two": 1, "b": 1, "b.one": 1, "b.two": 1, "b.act": 1, "act": 0,
    }  # fmt: skip


def test_a_model_that_is_wholly_on_another_rank_is_called_there():
    assert set(owners_of(describe(nn.Sequential(nn.Linear(1, 1), nn.ReLU())), {"0": 1}).values()) == {1}


def test_buffers_alone_do_not_separate_a_module_from_its_children():
    model = nn.Sequential(nn.Sequential(nn.Linear(1, 1)), nn.Linear(1, 1), nn.Module())
    model[0].register_buffer("positions", torch.arange(3))
    model[2].register_buffer("frequencies", torch.arange(3))
    has_state = {one.name: one.has_state for one in describe(model)}
    assert has_state == {"": False, "0": False, "0.0": True, "1": True, "2": True}
    assert {one.name for one in costs_by_size(model)} == {"0.0", "1", "2"}
    assert owners_of(describe(model), {"0.0": 1, "1": 0, "2": 1})["0"] == 1


def test_an_indivisible_module_is_placed_on_one_rank_with_its_children():
    inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    inner.is_indivisible = True
    model = nn.Sequential(inner, nn.Linear(4, 4))
    costs = trace_costs(model, lambda: model(torch.zeros(1, 4)))
    assert [one.name for one in costs] == ["0", "1"]
    assert costs[0].memory_bytes > 2 * 4 * (16 + 4)
    assert costs[0].seconds > costs[1].seconds
    owners = owners_of(describe(model), {"0": 1, "1": 0})
    assert owners == {"": 0, "0": 1, "0.0": 1, "0.1": 1, "1": 0}


def test_parameters_of_other_ranks_keep_their_shape_and_free_their_memory():
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))
    release_others(model, {"": 0, "0": 0, "1": 1}, 0)
    assert model[1].weight.shape == (100, 100)
    assert model[1].weight.untyped_storage().nbytes() == 4
    assert model[0].weight.untyped_storage().nbytes() == 40_000


def test_marks_of_inner_contexts_win_and_patches_are_removed():
    before = nn.Module.__init__
    with marking(0):
        model = nn.Sequential(nn.Linear(1, 1))
        with marking(1):
            model.append(nn.Linear(1, 1))
        model.append(nn.ReLU())
    mark(model[2], 3)
    assert marks_of(model) == {"": 0, "0": 0, "1": 1, "2": 3}
    assert nn.Module.__init__ is before
    assert marks_of(nn.Linear(1, 1)) == {}
    for wrong in (-1, True, "1"):
        assert "pipeline rank" in str(failure_of(ValueError, lambda wrong=wrong: mark(model, wrong)))


class Traced(nn.Module):
    def __init__(self):
        super().__init__()
        self.large, self.small = nn.Linear(64, 64), nn.Linear(64, 1)
        self.norm = nn.BatchNorm1d(64)
        self.never = nn.Linear(2, 2)
        self.tied = nn.Linear(64, 64, bias=False)
        self.tied.weight = self.large.weight

    def forward(self, x):
        return self.small(torch.nn.functional.dropout(self.norm(self.tied(self.large(x)))))


def test_a_trace_measures_modules_and_changes_nothing():
    model = Traced()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    costs = trace_costs(model, lambda: model(torch.randn(8, 64)))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [one.name for one in costs] == ["large", "tied", "norm", "small", "never"]
    by_name = {one.name: one for one in costs}
    assert by_name["large"].seconds > 2 * 8 * 64 * 64
    assert by_name["large"].seconds > 10 * by_name["small"].seconds
    assert by_name["never"].seconds == 0
    assert by_name["never"].memory_bytes == 4 * (4 + 2)
    assert by_name["large"].shared == by_name["tied"].shared != frozenset()
    assert not model._forward_hooks
    timed = trace_costs(model, lambda: model(torch.randn(8, 64)), measures_times=True)
    assert all(one.seconds >= 0 for one in timed)
    assert {one.name for one in costs_by_size(model)} == set(by_name)
