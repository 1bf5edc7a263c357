"""The module server: runs a rank's work during a step of a model that is cut over ranks.

Where: `DistributedModel.run_step` calls `run` on every rank that holds a part of the model. Pipeline rank 0 runs the
step's function, once per microbatch; the other ranks serve requests until rank 0 reports the end of the step.

    function of microbatch 0                owner of a module
      module(x)   -- FORWARD, tensors -->     runs the module, keeps the graph
                  <-- OUTPUT, tensors --
      backward    -- BACKWARD, grads  -->     backward pass of kept graph
                  <-- OUTPUT, grads   --

A request suspends its microbatch; the rank continues with the next action that its policy chooses (`policies`). A
served module may itself call modules of other ranks. With tensor parallelism all ranks of a tensor group run the same
actions in the same order, since their modules communicate: the group's first rank decides and sends its decisions to
the others (TURN).

Source: arXiv 2111.05972, section 4, for the idea of a module server.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from clary.train.parallel.errors import ParallelError, RankLost, RemoteFailure
from clary.train.parallel.pipeline.links import Links, PeerLost
from clary.train.parallel.pipeline.messages import CallId, Message, Subject, put_tensors, take_tensors
from clary.train.parallel.pipeline.policies import Phase, Ready, choose
from clary.train.parallel.pipeline.workers import Abandoned, Worker, WorkerPool, own_worker

_LOG = logging.getLogger(__name__)

_MAX_UNWINDS = 100  # how often an abandoned microbatch may catch `Abandoned`

Serve = Callable[[Message], Message]


@dataclass(frozen=True)
class Neighbours:
    """Peers of the links, by their role for this rank.

    Args:
        pipeline: the peer of every pipeline rank, including this one.
        pipeline_rank: this rank's pipeline rank.
        followers: the peers that follow this rank's decisions.
        leader: the peer whose decisions this rank follows; None if it decides itself.
        names: name of each peer, for error texts.
    """

    pipeline: tuple[int, ...]
    pipeline_rank: int
    followers: tuple[int, ...] = ()
    leader: int | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Wait:
    """A worker that waits for a response."""

    worker: Worker
    words: str


@dataclass
class _Task:
    """A task of a worker, running or ready."""

    ready: Ready
    begin: Callable[[], Any] | None  # None: its worker waits to continue
    worker: Worker | None = None
    request: Message | None = None
    answer: Any = None


class Server:
    """Runs steps; one server per process.

    Args:
        serve: runs a FORWARD or BACKWARD request on a worker, and returns its response.
        policy: value of the configuration key `pipeline`.
        max_active: value of the configuration key `active_microbatches`.
        timeout_s: timeout of a wait for another rank.
    """

    def __init__(
        self,
        links: Links,
        neighbours: Neighbours,
        *,
        serve: Serve,
        policy: str,
        max_active: int,
        timeout_s: float,
    ) -> None:
        self._links = links
        self._near = neighbours
        self._serve = serve
        self._policy = policy
        self._max_active = max_active
        self._timeout_s = timeout_s
        self._pool = WorkerPool()
        self._ready: dict[Ready, _Task] = {}
        self._waiting: dict[tuple[CallId, Subject], _Wait] = {}
        self._num_calls: dict[int, int] = {}
        self._num_active = 0
        self._turns: list[Ready] = []
        self._results: dict[int, Any] = {}
        self._failure: ParallelError | None = None
        self._ends: list[list[Any]] = []  # results of ended steps, oldest first
        self._bodies: Sequence[Callable[[], Any]] | None = None

    def run(self, bodies: Sequence[Callable[[], Any]] | None) -> list[Any]:
        """Run one step; return the results of all microbatches on every rank, with graphs on the first rank.

        Args:
            bodies: one function per microbatch; None on ranks that only serve.

        Raises:
            ParallelError: another rank failed, ended or sent no message within the timeout. Later steps raise the same
                error.
            Exception: the function's own error, on the rank that runs it.
        """
        if self._failure is not None:
            raise self._failure
        self._begin(bodies)
        try:
            while not self._is_over():
                self._take_messages()
                if not self._do_one() and not self._is_over():
                    self._wait_for_message()
            return self._end()
        except BaseException as error:
            self._fail(error)
            raise

    def ask(self, subject: Subject, peer_rank: int, call: CallId, body: Any, tensors: Sequence[Any]) -> Message:
        """Send a request to a pipeline rank and return the response; the worker is suspended meanwhile.

        Args:
            subject: FORWARD or BACKWARD.
            peer_rank: pipeline rank of the receiver.
            call: result of `next_call`; a BACKWARD uses the call of its FORWARD.
            body: value to pickle, whose first item names the module in error texts.
            tensors: tensors of any shape, which are sent raw.

        Raises: RemoteFailure with the error of the receiver.
        """
        worker = own_worker()
        assert worker is not None, "modules of other ranks are called on workers alone"
        peer = self._near.pipeline[peer_rank]
        words = f"{subject.value} of {body[0]}, microbatch {call.microbatch}, by {self._name(peer)}"
        self._waiting[call, subject] = _Wait(worker, words)
        self._send(peer, Message(subject, call, body, tensors))
        answer: Message = worker.wait()
        return answer

    def next_call(self) -> CallId:
        """Return a new id of a call by this rank.

        Raises: ParallelError outside a step.
        """
        worker = own_worker()
        if worker is None:
            raise ParallelError(
                "a module that lies on another rank was called outside of a step: call the model inside a function "
                "decorated with smp.step, on all ranks"
            )
        microbatch = worker.task.ready.microbatch
        number = self._num_calls.get(microbatch, 0)
        self._num_calls[microbatch] = number + 1
        return CallId(self._near.pipeline_rank, microbatch, number)

    def enter_backward(self) -> None:
        """Let the policy decide when the calling microbatch begins its backward pass."""
        worker = own_worker()
        if worker is None:
            return
        task: _Task = worker.task
        task.ready = Ready(Phase.BACKWARD, task.ready.microbatch, task.ready.caller, task.ready.number, True)
        task.begin = task.answer = None
        self._ready[task.ready] = task
        worker.wait()

    def close(self) -> None:
        """Close the streams, which other ranks notice, and end the idle threads."""
        self._links.close()
        self._pool.close()

    # The parts of a step.

    def _begin(self, bodies: Sequence[Callable[[], Any]] | None) -> None:
        self._bodies = bodies
        self._results, self._num_calls, self._num_active = {}, {}, 0
        for microbatch, body in enumerate(bodies or ()):
            ready = Ready(Phase.START, microbatch)
            self._ready[ready] = _Task(ready, body)

    def _is_over(self) -> bool:
        if self._bodies is None:
            return bool(self._ends)
        return len(self._results) == len(self._bodies)

    def _end(self) -> list[Any]:
        if self._bodies is None:
            return self._ends.pop(0)
        # Not kept any longer: results hold graphs, whose nodes hold this server.
        found, self._results = self._results, {}
        results = [found[microbatch] for microbatch in range(len(self._bodies))]
        tensors: list[torch.Tensor] = []
        body = take_tensors(results, tensors)
        for rank, peer in enumerate(self._near.pipeline):
            if rank != self._near.pipeline_rank:
                self._send(peer, Message(Subject.STEP_END, None, body, tensors))
        return results

    def _do_one(self) -> bool:
        """Run the task that the policy chooses; return False if no task is ready."""
        task = self._next_task()
        if task is None:
            return False
        worker = task.worker
        if task.begin is not None:
            worker = task.worker = self._pool.take()
            begin, task.begin = task.begin, None
            self._num_active += task.request is None
            if task.request is None:
                task.ready = Ready(Phase.FORWARD, task.ready.microbatch)
            worker.begin(task, begin)
        else:
            assert worker is not None
            worker.answer = task.answer
            worker.go_on()
        if worker.is_done:
            self._finish(task, worker)
        return True

    def _next_task(self) -> _Task | None:
        if self._near.leader is not None:
            if not self._turns or self._turns[0] not in self._ready:
                return None
            return self._ready.pop(self._turns.pop(0))
        decision = choose(self._policy, list(self._ready), num_active=self._num_active, max_active=self._max_active)
        if decision.chosen is None:
            return None
        _LOG.debug("%s: %s", decision.chosen, decision.reason)
        for follower in self._near.followers:
            self._send(follower, Message(Subject.TURN, None, decision.chosen))
        return self._ready.pop(decision.chosen)

    def _finish(self, task: _Task, worker: Worker) -> None:
        result, error = worker.result, worker.error
        self._pool.give_back(worker)
        if task.request is None:
            self._num_active -= 1
            if error is not None:
                raise error
            self._results[task.ready.microbatch] = result
            return
        call = task.request.call
        assert call is not None
        if error is not None:
            text = "".join(traceback.format_exception(error)).rstrip()
            result = Message(Subject.FAILED, call, (task.request.subject, f"{self._doing(task)} failed:\n{text}"))
        self._send(self._near.pipeline[call.caller], result)

    def _send(self, peer: int, message: Message) -> None:
        try:
            self._links.send(peer, message)
        except PeerLost as lost:
            raise self._lost(lost) from lost

    def _take_messages(self) -> None:
        """Process all received messages up to the end of the step, after which a peer may end without failure."""
        while not self._is_over():
            try:
                peer, message = self._links.receive(0)
            except TimeoutError:
                return
            except PeerLost as lost:
                raise self._lost(lost) from lost
            self._take(peer, message)

    def _wait_for_message(self) -> None:
        began_s = time.monotonic()
        try:
            peer, message = self._links.receive(self._timeout_s)
        except PeerLost as lost:
            raise self._lost(lost) from lost
        except TimeoutError:
            waited_s = time.monotonic() - began_s
            raise RankLost(f"{self._own()} heard nothing for {waited_s:.0f} s; {self._waits_for()}") from None
        self._take(peer, message)

    def _take(self, peer: int, message: Message) -> None:
        subject, call = message.subject, message.call
        if subject is Subject.TURN:
            self._turns.append(message.body)
        elif subject is Subject.STEP_END:
            self._ends.append(put_tensors(message.body, message.tensors))
        elif subject is Subject.ABORT:
            raise ParallelError(f"{self._own()} gave the step up, because {self._name(peer)} did: {message.body}")
        elif subject in (Subject.FORWARD, Subject.BACKWARD):
            assert call is not None
            phase = Phase.FORWARD if subject is Subject.FORWARD else Phase.BACKWARD
            ready = Ready(phase, call.microbatch, call.caller, call.number)
            self._ready[ready] = _Task(ready, lambda: self._serve(message), request=message)
        else:
            self._take_answer(message)

    def _take_answer(self, message: Message) -> None:
        """Make the worker that waits for a response ready."""
        call = message.call
        assert call is not None
        asked, answer = (
            (message.body[0], RemoteFailure(message.body[1]))
            if message.subject is Subject.FAILED
            else (
                message.body[0],
                message,
            )
        )
        worker = self._waiting.pop((call, asked)).worker
        task: _Task = worker.task
        phase = Phase.BACKWARD if asked is Subject.BACKWARD else task.ready.phase
        task.ready = Ready(phase, call.microbatch, call.caller, call.number, True)
        task.answer = answer
        self._ready[task.ready] = task

    # Failures.

    def _fail(self, error: BaseException) -> None:
        """Record the failure, notify the other ranks, and end the running tasks."""
        text = str(error) if isinstance(error, ParallelError) else f"{type(error).__name__}: {error}"
        self._failure = error if isinstance(error, ParallelError) else ParallelError(f"an earlier step failed: {text}")
        told = {*self._near.pipeline, *self._near.followers}
        if self._near.leader is not None:
            told.add(self._near.leader)
        for peer in told - {self._near.pipeline[self._near.pipeline_rank]}:
            try:
                self._links.send(peer, Message(Subject.ABORT, None, text))
            except PeerLost:
                continue  # this peer may be the failed one
        workers = {id(wait.worker): wait.worker for wait in self._waiting.values()}
        workers |= {id(task.worker): task.worker for task in self._ready.values() if task.worker is not None}
        self._waiting, self._ready, self._turns = {}, {}, []
        for worker in workers.values():
            for _ in range(_MAX_UNWINDS):
                if worker.is_done:
                    break
                worker.answer = Abandoned()
                worker.go_on()

    def _lost(self, lost: PeerLost) -> RankLost:
        return RankLost(f"{self._name(lost.peer)} is lost, {lost}; {self._own()} {self._waits_for()}")

    def _waits_for(self) -> str:
        """Describe the events for which this rank waits, for error texts."""
        waits = [wait.words for wait in self._waiting.values()]
        if waits:
            return f"waits for {'; '.join(waits)}"
        if self._near.leader is not None and self._ready:
            return f"waits for the next action from {self._name(self._near.leader)}"
        return "waits for requests"

    def _doing(self, task: _Task) -> str:
        request = task.request
        assert request is not None
        assert request.call is not None
        return f"{self._own()}: {request.subject.value} of {request.body[0]}, microbatch {request.call.microbatch},"

    def _own(self) -> str:
        return self._name(self._near.pipeline[self._near.pipeline_rank])

    def _name(self, peer: int) -> str:
        return self._near.names[peer] if peer < len(self._near.names) else f"peer {peer}"
