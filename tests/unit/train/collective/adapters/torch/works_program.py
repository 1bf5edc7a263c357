"""The works that torch waits on, over a core whose operations end when a test says so."""

import contextlib
import gc
import logging
import threading
import time
import weakref
from datetime import timedelta

import torch
from fake_core import FakeCore

from clary.train._native.errors import CollectiveTimeout, GroupClosed, PeerLost
from clary.train._native.interface import Kind, Operation
from clary.train.collective.adapters.torch.completion import CompletionThread
from clary.train.collective.adapters.torch.work import EndedWork, JointWork, PendingWork

_SOON_S = 5.0


def pending(finish=None):
    core = FakeCore()
    completion = CompletionThread(core, "group", 0)
    tensor = torch.zeros(3)
    ticket = core.run(Operation(Kind.BARRIER, asynchronous=True))
    return core, completion, PendingWork(core, ticket, completion, [tensor], tensor, finish)


def raised(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller looks at it
        return error
    raise AssertionError("nothing was raised")


@contextlib.contextmanager
def logged(name):
    """Collect the lines of a logger, with tracebacks."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(handler.format(record))
    logging.getLogger(name).addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger(name).removeHandler(handler)


def until(condition):
    deadline = time.monotonic() + _SOON_S
    while not condition():
        assert time.monotonic() < deadline, "did not come to pass"
        time.sleep(0.001)


def test_waiting_returns_once_the_operation_has_ended():
    core, _, work = pending()
    threading.Timer(0.05, core.end, (work.ticket,)).start()
    assert not work.is_completed()
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert work.wait()  # and again


def test_waiting_for_too_short_a_time_leaves_the_operation_under_way():
    core, _, work = pending()
    error = raised(work.wait, timedelta(milliseconds=10))
    assert isinstance(error, CollectiveTimeout)
    assert "goes on" in str(error)
    assert not work.is_completed()
    core.end(work.ticket)
    assert work.wait(timedelta(seconds=_SOON_S))


def test_a_zero_timeout_means_none():
    core, _, work = pending()
    threading.Timer(0.05, core.end, (work.ticket,)).start()
    assert work.wait(timedelta(0))


def test_a_failed_operation_raises_its_error_at_every_wait():
    core, _, work = pending()
    core.end(work.ticket, PeerLost("rank 1 died", culprit=1))
    for _ in range(2):
        error = raised(work.wait)
        assert isinstance(error, PeerLost)
        assert error.culprit == 1
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), PeerLost)


def test_polling_takes_the_end_and_runs_what_finishes_the_operation():
    finished = []
    core, _, work = pending(lambda: finished.append(True))
    assert not work.is_completed()
    core.end(work.ticket)
    assert work.is_completed()
    assert finished == [True]
    assert not core.open_tickets


def test_what_finishes_an_operation_runs_once_and_not_after_a_failure():
    finished = []
    core, _, work = pending(lambda: finished.append(True))
    core.end(work.ticket)
    work.wait()
    work.wait()
    assert finished == [True]
    core, _, work = pending(lambda: finished.append(True))
    core.end(work.ticket, PeerLost("gone"))
    raised(work.wait)
    assert finished == [True]


def test_a_future_ends_with_the_tensors_when_the_operation_ends():
    core, completion, work = pending()
    future = work.get_future()
    assert not future.done()
    core.end(work.ticket)
    assert future.wait()[0] is work.result()[0]
    assert work.get_future() is future
    assert work.is_completed()
    core.close()
    completion.join()


def test_a_future_of_an_operation_that_has_ended_is_done():
    core, _, work = pending()
    core.end(work.ticket)
    work.wait()
    assert work.get_future().done()


def test_a_future_of_a_failed_operation_raises():
    core, completion, work = pending()
    future = work.get_future()
    core.end(work.ticket, PeerLost("rank 1 died"))
    assert "rank 1 died" in str(raised(future.wait))
    assert isinstance(raised(work.wait), PeerLost)
    core.close()
    completion.join()


def test_waiting_for_an_operation_with_a_future_does_not_take_its_end_twice():
    core, completion, work = pending()
    future = work.get_future()
    threading.Timer(0.05, core.end, (work.ticket,)).start()
    assert work.wait()
    future.wait()
    assert not core.open_tickets
    core.close()
    completion.join()


def test_two_threads_may_wait_for_one_operation():
    core, _, work = pending()
    ends = []
    threads = [threading.Thread(target=lambda: ends.append(work.wait())) for _ in range(2)]
    for thread in threads:
        thread.start()
    core.end(work.ticket)
    for thread in threads:
        thread.join(_SOON_S)
    assert ends == [True, True]


def waiting(work, ends, *timeout):
    """Start a thread that waits for a work; return once it is in the core."""
    thread = threading.Thread(target=lambda: ends.append(work.wait(*timeout)), daemon=True)
    thread.start()
    time.sleep(0.1)
    return thread


def in_time(function):
    """Return the result of a function in a thread of its own, which must end soon."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(1)
    assert results, f"{function} waited for the operation"
    return results[0]


def test_polling_and_asking_for_a_future_do_not_wait_for_a_thread_that_waits():
    core, completion, work = pending()
    ends, told = [], []
    thread = waiting(work, ends)
    assert in_time(work.is_completed) is False
    assert in_time(work.is_success) is False
    future = in_time(work.get_future)
    assert not future.done()
    future.add_done_callback(lambda _: told.append(threading.current_thread()))
    assert in_time(lambda: raised(work.wait, timedelta(milliseconds=10))).args
    core.end(work.ticket)
    thread.join(_SOON_S)
    assert ends == [True]
    until(lambda: told)
    assert told[0] is not thread
    assert future.value()[0] is work.result()[0]
    assert work.get_future() is future
    assert not core.open_tickets
    core.close()
    completion.join()


def test_a_future_asked_for_during_a_wait_ends_after_the_wait_was_given_up():
    core, completion, work = pending()
    errors = []
    thread = threading.Thread(target=lambda: errors.append(raised(work.wait, timedelta(seconds=0.3))), daemon=True)
    thread.start()
    time.sleep(0.1)
    future = in_time(work.get_future)
    thread.join(_SOON_S)
    assert isinstance(errors[0], CollectiveTimeout)
    core.end(work.ticket)
    until(future.done)
    assert work.wait()
    core.close()
    completion.join()


def test_a_short_wait_beside_a_long_one_ends_in_its_time():
    core, _, work = pending()
    ends = []
    thread = waiting(work, ends)
    assert isinstance(in_time(lambda: raised(work.wait, timedelta(milliseconds=10))), CollectiveTimeout)
    core.end(work.ticket)
    thread.join(_SOON_S)
    assert ends == [True]


def test_a_long_wait_goes_on_after_a_short_one_was_given_up():
    core, _, work = pending()
    errors, ends = [], []
    short = threading.Thread(target=lambda: errors.append(raised(work.wait, timedelta(seconds=0.3))), daemon=True)
    short.start()
    time.sleep(0.1)
    long = waiting(work, ends)
    short.join(_SOON_S)
    assert isinstance(errors[0], CollectiveTimeout)
    core.end(work.ticket)
    long.join(_SOON_S)
    assert ends == [True]
    assert not core.open_tickets


def test_threads_that_wait_poll_and_ask_for_futures_at_once_agree():
    for _ in range(50):
        use_by_four_threads(*pending())


def use_by_four_threads(core, completion, work):
    ends = []
    calls = (work.wait, work.wait, lambda: bool(work.get_future().wait()), lambda: work.is_completed() or True)
    threads = [threading.Thread(target=lambda call=call: ends.append(call()), daemon=True) for call in calls]
    for thread in threads[:2]:
        thread.start()
    core.end(work.ticket)
    for thread in threads[2:]:
        thread.start()
    for thread in threads:
        thread.join(_SOON_S)
    assert ends == [True] * 4
    assert not core.open_tickets
    core.close()
    completion.join()


def test_a_callback_may_wait_for_the_futures_of_operations_that_it_starts():
    core, completion, work = pending()
    inner = []

    def start_and_wait(_):
        for _ in range(2):
            more = PendingWork(core, core.run(Operation(Kind.BARRIER, asynchronous=True)), completion, [])
            inner.append(more)
            threading.Timer(0.02, core.end, (more.ticket,)).start()
            more.get_future().then(lambda _: None).wait()
        return len(inner)

    both = work.get_future().then(start_and_wait)
    core.end(work.ticket)
    until(both.done)
    assert both.value() == 2
    core.close()
    completion.join()


def test_closing_the_group_fails_futures_that_have_not_ended():
    core, completion, work = pending()
    future = work.get_future()
    core.close()
    completion.join()
    assert "GroupClosed" in str(raised(future.wait))
    assert isinstance(raised(work.wait), GroupClosed)


def test_a_future_asked_for_after_the_group_was_closed_raises():
    core, completion, work = pending()
    core.close()
    completion.join()
    assert "GroupClosed" in str(raised(work.get_future().wait))


def test_a_dropped_work_keeps_its_memory_until_the_operation_has_ended():
    finished = []
    core, completion, work = pending(lambda: finished.append(True))
    ticket = work.ticket
    memory = weakref.ref(work._held)
    del work
    gc.collect()
    assert memory() is not None
    core.end(ticket)
    until(lambda: finished)
    until(lambda: memory() is None)
    assert not core.open_tickets
    core.close()
    completion.join()


def test_errors_of_dropped_works_are_logged_and_later_futures_still_end():
    def fail():
        raise RuntimeError("its output has gone")

    for error, finish in ((ValueError("sent 4 bytes, the receive is for 8"), None), (None, fail)):
        core, completion, work = pending(finish)
        ticket = work.ticket
        with logged("clary.train.collective.adapters.torch.completion") as lines:
            del work
            gc.collect()
            core.end(ticket, error)
            until(lambda: lines)
        assert "rank 0 of group" in lines[0]
        assert ("sent 4 bytes" if error else "its output has gone") in lines[0]
        later = PendingWork(core, core.run(Operation(Kind.BARRIER, asynchronous=True)), completion, [])
        future = later.get_future()
        core.end(later.ticket)
        until(future.done)
        core.close()
        completion.join()


def test_a_future_that_cannot_be_ended_costs_no_other():
    class Broken:
        def __init__(self, ticket):
            self.ticket = ticket

        def take_end(self):
            core.wait(self.ticket, None)

        def tell(self):
            raise SystemExit("a callback leaves")

    core, completion, work = pending()
    broken = Broken(core.run(Operation(Kind.BARRIER, asynchronous=True)))
    with logged("clary.train.collective.adapters.torch.completion") as lines:
        completion.watch(broken)
        core.end(broken.ticket)
        until(lambda: lines)
    future = work.get_future()
    core.end(work.ticket)
    until(future.done)
    core.close()
    completion.join()


def test_a_work_dropped_after_its_end_leaves_nothing_behind():
    core, _, work = pending()
    core.end(work.ticket)
    work.wait()
    memory = weakref.ref(work.result()[0])
    del work
    gc.collect()
    assert memory() is None
    assert not [thread for thread in threading.enumerate() if thread.name == "clary-completion-group"]


def test_a_joint_work_ends_with_the_last_of_its_works():
    core = FakeCore()
    completion = CompletionThread(core, "group", 0)
    tensors = [torch.zeros(1), torch.ones(1)]
    works = [
        PendingWork(core, core.run(Operation(Kind.BARRIER, asynchronous=True)), completion, [tensor])
        for tensor in tensors
    ]
    joint = JointWork(works, tensors)
    core.end(works[0].ticket)
    assert not joint.is_completed()
    future = joint.get_future()
    core.end(works[1].ticket)
    assert joint.wait()
    assert joint.is_success()
    assert future.wait() == tensors
    core.close()
    completion.join()


def test_a_joint_work_fails_with_the_first_that_failed():
    core = FakeCore()
    completion = CompletionThread(core, "group", 0)
    works = [PendingWork(core, core.run(Operation(Kind.BARRIER, asynchronous=True)), completion, []) for _ in range(2)]
    joint = JointWork(works, [])
    core.end(works[0].ticket, PeerLost("first"))
    core.end(works[1].ticket, PeerLost("second"))
    assert "first" in str(raised(joint.wait))
    assert not joint.is_success() or joint.exception() is not None


def test_an_ended_work_has_its_tensors_at_once():
    tensor = torch.zeros(1)
    work = EndedWork([tensor])
    assert work.wait()
    assert work.is_completed()
    assert work.get_future().value()[0] is tensor
    assert work.exception() is None
