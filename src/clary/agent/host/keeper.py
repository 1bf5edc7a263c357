"""The loop that runs a program: it starts the processes, reaps ended processes, and executes the agent's messages.

Where: the last step of a host's first process for a program. The loop ends when the control socket is closed, by the
agent or by its death, or when the agent wants the host for another program. No process of the program outlives the
loop. Messages are JSON objects, one per packet, with a `kind`:

    to the agent: forked, begun (processes may run the program's code), ready, exited, signalled,
        heard (SIGTERM, from outside of the host), note;
        from `init`: init (its credentials have the pid), again (why_not), failed (message)
    from the agent: signal (number, id), kill, again; before these: start, if the host stands by (`standing_by`), and
        then begin, if the program waits for it
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from clary.agent.host.confinement import Confinement
from clary.agent.host.spawning import announce_to, spawn
from clary.agent.host.stopping.census import Census
from clary.agent.host.stopping.outside import OutsideSignals
from clary.agent.host.stopping.stop_signals import StopSignals
from clary.agent.host.zygote_process import Zygote

MAX_MESSAGE_BYTES = 65536

# An exit after one of these signals is attributed to the agent; after other signals (SIGUSR1, SIGCONT...) to the
# program.
_ENDING_SIGNALS = frozenset((signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))
# SIGINT to SIGPIPE: a stray `kill 1` or Ctrl-C would end the reaper, and with it the program. SIGUSR1 and SIGUSR2:
# schedulers send them to every process of a step.
IGNORED_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


class GivenUp(Exception):
    """The agent has given up a program that waits for `begin`."""


class Keeper:
    """Runs one program until its end.

    Args:
        processes: the processes to start, in order.
        control: socket to the agent, SOCK_SEQPACKET.
        census: finds every process of the program.
        dies_with_keeper: whether the kernel's parent-death signal ends the processes with this process.
        confinement: the confinement that each process enters.
        zygote: standby interpreter from which the processes marked with `forks` are forked.
        waits: whether the program waits for the message `begin`: forked processes at their gate, others unstarted.
    """

    def __init__(
        self,
        processes: Sequence[Mapping[str, Any]],
        control: socket.socket,
        *,
        census: Census,
        dies_with_keeper: bool,
        confinement: Confinement,
        zygote: Zygote | None = None,
        waits: bool = False,
    ) -> None:
        self._processes = processes
        self._control = control
        self._census = census
        self._stop_signals = StopSignals(census)
        self._dies_with_keeper = dies_with_keeper
        self._confinement = confinement
        self._zygote = zygote
        self._waits = waits
        self._has_begun = False
        self._why_not_forked = ""
        self._outside: OutsideSignals | None = None
        self._alive: dict[int, int] = {}  # pid -> index; only processes in `processes`
        self._next_look_s = 0.0  # monotonic time of the census's next `look`
        self._doomed: set[int] = set()  # pids alive when the agent ended the program
        self.is_asked_again = False  # whether the agent wants the host for another program

    def run(self, *, not_isolated: Sequence[str]) -> None:
        """Start and reap processes until the agent disconnects or reuses the host; then kill the remaining ones."""
        child_ended, wakeup = os.pipe()
        os.set_blocking(child_ended, False)
        os.set_blocking(wakeup, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # the wake-up descriptor needs a Python handler
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        with contextlib.suppress(OSError):  # a kernel without signalfd: outside signals are ignored
            self._outside = OutsideSignals(self._census.may_hold)
        has_waited = self._waits
        try:
            try:
                forked = self._fork_marked()
                self._await_begin()
            except GivenUp:
                return
            self._start_all(forked)
            # A signal before the start concerns only processes that have waited for it.
            was_heard = self._outside is not None and self._outside.take() and has_waited
            self._send(
                kind="ready",
                not_isolated=list(not_isolated),
                num_forked=len(forked),
                why_not_forked=self._why_not_forked,
            )
            if was_heard:
                self._note_heard()
            poll = select.poll()
            poll.register(self._control, select.POLLIN)
            poll.register(child_ended, select.POLLIN)
            if self._outside is not None:
                poll.register(self._outside, select.POLLIN)
            is_kept = True
            while is_kept:
                pause_s = self._stop_signals.poll_s
                pauses_s = [limit_s for limit_s in (pause_s, self._look_in_s()) if limit_s is not None]
                ready = [descriptor for descriptor, _ in poll.poll(min(pauses_s) * 1000 if pauses_s else None)]
                # Before exits are reaped: a process ended by an outside signal did not end by itself.
                self._hear()
                if child_ended in ready:
                    _empty(child_ended)
                    self._reap()
                if pause_s is not None:
                    self._stop_signals.send_late()
                if self._control.fileno() in ready:
                    is_kept = self._obey()
        finally:
            self._census.kill_all()
            signal.set_wakeup_fd(-1)
            for descriptor in (child_ended, wakeup):
                os.close(descriptor)
            if self._outside is not None:
                self._outside.close()
        self._reap()

    def _hear(self) -> None:
        """Record a SIGTERM from outside of the host, which the program has received too."""
        if self._outside is not None and self._outside.take():
            self._note_heard()

    def _note_heard(self) -> None:
        self._doomed.update(self._alive)  # includes processes that the signal has already ended
        self._stop_signals.hear()
        self._send(kind="heard")

    def _look_in_s(self) -> float | None:
        """Call the census's `look` if it is due; return the seconds until the next call, or None without calls."""
        interval_s = self._census.look_interval_s
        if interval_s is None:
            return None
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._census.look()
            self._next_look_s = now_s + interval_s
        return self._next_look_s - now_s

    def _fork_marked(self) -> Mapping[int, int]:
        """Fork the processes marked with `forks` from the zygote; return index -> pid, empty after a failure."""
        if self._zygote is None:
            return {}
        pids, self._why_not_forked = self._zygote.fork(
            self._processes,
            control=self._control,
            parent_watched=self._dies_with_keeper,
            before_gate=self._await_begin,
        )
        if not pids:
            # Kill leftovers of the zygote; no process of the program runs yet.
            self._census.kill_all()
        return pids

    def _await_begin(self) -> None:
        """Wait for the message `begin` of a program that waits, and report that it begins; a second call does nothing.

        Raises: GivenUp if the agent ends instead, or ends the program.
        """
        if self._has_begun:
            return
        if self._waits:
            try:
                data = self._control.recv(MAX_MESSAGE_BYTES)
            except ConnectionError:
                data = b""
            if not data or json.loads(data)["kind"] != "begin":
                raise GivenUp
        self._has_begun = True
        self._send(kind="begun")

    def _start_all(self, forked: Mapping[int, int]) -> None:
        for index, process in enumerate(self._processes):
            pid, failure = forked.get(index), ""
            if pid is None:
                announce = functools.partial(announce_to, self._control, index)
                pid, failure = spawn(
                    process,
                    announce=announce,
                    parent_watched=self._dies_with_keeper,
                    confinement=self._confinement,
                )
            self._alive[pid] = index
            # If it stayed open here, the pipe's reader would never get an end of file.
            os.close(process["output_fd"])
            if failure:
                self._send(kind="note", text=f"Process {index} could not be started: {failure}.")

    def _obey(self) -> bool:
        """Execute one message; return False if the loop must end."""
        try:
            data = self._control.recv(MAX_MESSAGE_BYTES)
        except ConnectionError:
            return False
        if not data:
            return False
        message = json.loads(data)
        # Reap first: a process that has already ended or is ending counts as having ended by itself.
        self._reap()
        if message["kind"] == "again":
            self.is_asked_again = True
            return False
        if message["kind"] == "kill":
            self._doomed.update(self._not_exiting())
            self._census.kill_all()
            self._reap()
        else:
            if message["number"] in _ENDING_SIGNALS:
                self._doomed.update(self._not_exiting())
            is_stop = message["number"] == signal.SIGTERM
            count = self._stop_signals.send() if is_stop else self._census.signal_all(message["number"])
            self._send(kind="signalled", id=message["id"], count=count)
        return True

    def _not_exiting(self) -> set[int]:
        """Return the pids of listed processes that are not ending; all of them if that is unknown."""
        live = self._census.live()
        return {pid for pid in self._alive if not live or (pid in live and not live[pid].is_exiting)}

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            index = self._alive.pop(pid, None)
            if index is not None:
                code = os.waitstatus_to_exitcode(status)
                self._send(
                    kind="exited",
                    index=index,
                    code=code if code >= 0 else None,
                    signal=-code if code < 0 else None,
                    at=time.time(),
                    doomed=pid in self._doomed or (-code == signal.SIGTERM and self._stop_signals.was_heard),
                )

    def _send(self, **message: Any) -> None:
        with contextlib.suppress(ConnectionError):  # disconnected, as the next read shows
            self._control.send(json.dumps(message).encode())


def _empty(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass
