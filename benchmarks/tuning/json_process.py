"""A program in another interpreter that answers one line of JSON for each that it gets.

Where: benchmarks of tuning train in the environment of a task and ask searches in that of a peer.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

ANSWER_LIMIT_S = 120.0  # the first answer of a program waits for its imports
END_LIMIT_S = 10.0


class JsonProcess:
    """A running program; a context manager that ends it.

    Args:
        name: in messages.
        command: interpreter, program and arguments.
        variables: of its environment, besides ours.
    """

    def __init__(self, name: str, command: Sequence[str], *, variables: Mapping[str, str] | None = None) -> None:
        self._name = name
        # One thread: two programs that compute by turns must not slow each other down on two cores.
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **threads, **(variables or {})},
        )

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to an order; exits if the program ends, or says nothing for ANSWER_LIMIT_S."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limit = threading.Timer(ANSWER_LIMIT_S, self._process.kill)
        limit.start()
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            limit.cancel()
        if not line:
            code = self._process.wait(timeout=END_LIMIT_S)
            raise SystemExit(f"{self._name}: expected an answer within {ANSWER_LIMIT_S:g} s, got exit code {code}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # the program reads its end, and ends
        try:
            self._process.wait(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=END_LIMIT_S)
        self._process.stdout.close()
