"""The time for which a program's pipe may stay unread."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest

from clary.agent.host.output_pipes import LONGEST_REST_S, PIPE_BYTES, rest_s_of


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_program_can_print_a_mebibyte_into_an_unread_pipe(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    assert rest_s_of(read_end) == LONGEST_REST_S
    os.set_blocking(write_end, False)
    assert os.write(write_end, b"x" * (PIPE_BYTES + 1)) == PIPE_BYTES


def test_a_pipe_that_may_not_grow_is_read_sooner(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl.fcntl(pipe[0], fcntl.F_SETPIPE_SZ, PIPE_BYTES // 4)
    real_fcntl = fcntl.fcntl

    def refuse(descriptor: int, command: int, *arguments: int) -> int:
        if command == fcntl.F_SETPIPE_SZ:
            raise PermissionError("pipe-user-pages-soft is reached")
        return real_fcntl(descriptor, command, *arguments)

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    assert rest_s_of(pipe[0]) == LONGEST_REST_S / 4
