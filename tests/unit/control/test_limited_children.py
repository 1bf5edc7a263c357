"""The end of asyncio's children: killed, collected, or abandoned if they hang in the kernel."""

import asyncio
import logging
import sys
import time

from clary.control.limited_children import end_child


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


class FakeProcess:
    """A process that SIGKILL does not end."""

    def __init__(self, process):
        self._process = process

    def kill(self):
        pass

    def __getattr__(self, name):
        return getattr(self._process, name)
