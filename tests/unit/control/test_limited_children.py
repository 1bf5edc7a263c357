"""Output and end of asyncio's children: read to a limit, killed, collected, or abandoned if they hang in the kernel."""

import asyncio
import logging
import sys
import time

import pytest

from clary.base.limited_runs import OutputTooLong
from clary.control.limited_children import end_child, read_output


async def start():
    return await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)", stdout=asyncio.subprocess.PIPE
    )


async def test_a_child_is_killed_and_collected():
    child = await start()
    assert await end_child(child)
    assert child.returncode == -9
    assert await end_child(child), "a second call does nothing"


async def test_a_child_that_hangs_in_the_kernel_is_abandoned(monkeypatch, caplog):
    child = await start()
    kill = child.kill
    monkeypatch.setattr(child, "kill", lambda: None)  # the signal has no effect
    monkeypatch.setattr(child._transport, "_proc", FakeProcess(child._transport._proc))
    began_s = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert not await end_child(child, limit_s=0.1)
    assert time.monotonic() - began_s < 10
    assert f"process {child.pid} does not end after SIGKILL" in caplog.text
    assert child._transport.is_closing()
    assert child.stdout.at_eof() or await child.stdout.read() == b""
    monkeypatch.undo()
    kill()
    await child.wait()


async def printing(code):
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", code, stdout=pipe, stderr=pipe)


async def test_both_streams_of_a_child_are_read_to_their_ends():
    child = await printing("import os; os.write(2, b'e' * 300_000); os.write(1, b'o' * 300_000); os._exit(3)")
    output, errors = await read_output(child, "python")
    assert (len(output), len(errors), child.returncode) == (300_000, 300_000, 3)


@pytest.mark.parametrize("stream", [1, 2])
async def test_a_child_that_prints_without_end_is_an_error_that_names_it(stream):
    child = await printing(f"import os\nwhile True: os.write({stream}, b'x' * 65536)")
    async with asyncio.timeout(60):
        with pytest.raises(OutputTooLong, match="squeue printed more than 1048576 bytes"):
            await read_output(child, "squeue", most_bytes=1 << 20)
    assert await end_child(child)


async def test_a_child_whose_output_another_process_holds_is_collected():
    child = await asyncio.create_subprocess_exec(
        "sh", "-c", "sleep 5 & exec sleep 60", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    await asyncio.sleep(0.2)  # until the other process has begun
    assert await end_child(child)


class FakeProcess:
    """A process that SIGKILL does not end."""

    def __init__(self, process):
        self._process = process

    def kill(self):
        pass

    def __getattr__(self, name):
        return getattr(self._process, name)
