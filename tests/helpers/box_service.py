"""Program that runs a service of boxes only: real listener and scheduler, a stand-in for the boot.

Where: tests of boxes run it on the head of their bed, in place of a whole service, to call the scheduler directly.
It reads a JSON list from each line of its input (a method of the scheduler and its arguments) and answers in one line.
The boot that it sends writes its facts to its scratch folder, starts a child that tries to escape, and keeps running.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

from own_pages import FewParts

from clary.base.clock import SystemClock
from clary.base.plain import to_plain
from clary.base.processes import ProcessId
from clary.control.engines.boxes.scheduler import BoxesScheduler
from clary.control.engines.cluster.scheduler import AllocationOrder, Boot, HostWish
from clary.control.server.edge.listener import Listener
from clary.control.server.edge.sessions import Sessions
from clary.control.server.edge.tls import ensure_certificates, server_context
from clary.control.state_folder import ServiceRecord, StateFolder

STAND_IN = """
import argparse, json, os, signal, sys, time
parser = argparse.ArgumentParser()
for name in ("service", "ca", "tag", "index", "proof", "scratch"):
    parser.add_argument("--" + name, required=True)
options = parser.parse_args()
with open(options.proof.removeprefix("file:")) as file:
    token = file.read().strip()
place = os.path.join(options.scratch, options.tag + "-" + options.index)
os.makedirs(place, exist_ok=True)
def note(words):
    with open(os.path.join(place, "notes"), "a") as file:
        file.write(words + "\\n")
signal.signal(signal.SIGTERM, lambda *_: note("SIGTERM"))
if os.fork() == 0:
    # Away: a session of its own, no parent, no mark, and deaf to what ends others.
    os.setsid()
    if os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.execve("/bin/sleep", ["sleep", "98765"], {})
note("began " + str(os.getpid()))
with open(os.path.join(place, "facts.json"), "w") as file:
    json.dump({"pid": os.getpid(), "proof": token, "arguments": sys.argv, "variables": sorted(os.environ)}, file)
deadline = time.monotonic() + 600
while time.monotonic() < deadline:
    time.sleep(0.05)
    if os.path.exists(os.path.join(place, "leave")):
        sys.exit(7)
"""


async def serve(home, address, port):
    """Serve until the input ends."""
    clock, folder = SystemClock(), StateFolder(Path(home))
    folder.create()
    secrets = folder.load_secrets()
    files = ensure_certificates(folder.tls, region="us-west-2", host="127.0.0.1", nodes_host=address, now=clock.now())
    boot = Boot(script=STAND_IN, service_url=f"https://{address}:{port}", ca_pem=files.authority.read_text())
    scheduler = BoxesScheduler(folder.root / "boxes", clock)
    await scheduler.start(boot)
    sessions = Sessions(secrets.session_key, folder.revoked_sessions, clock)
    given = {"boxes": scheduler.desk, "engine": "boxes"}
    pages = FewParts(sessions=sessions, admin_token=secrets.admin_token, **given)
    listener = Listener(
        "0.0.0.0",
        0,
        aws_handler=nothing,
        s3_front=SimpleNamespace(handle=nothing),
        clary_handler=pages.handler.handle,
        clary_gate=pages.handler.admit,
        max_body_bytes=1 << 20,
        tls_context=server_context(files),
        tls_port=port,
    )
    await listener.start()
    me = ProcessId.of(os.getpid())
    record = ServiceRecord(
        pid=me.pid,
        process_started=me.started,
        url=f"http://127.0.0.1:{listener.port}",
        tls_url="",
        proxy_url="",
        region="us-west-2",
        version="test",
    )
    folder.write_service_record(record)
    print("ready", flush=True)
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await answer(scheduler, *json.loads(line))), flush=True)
    finally:
        await scheduler.close()
        await listener.close()


async def nothing(request):
    """Stand for the AWS API, which no test of boxes calls."""
    raise AssertionError("boxes alone ask this service")


async def answer(scheduler, what, *arguments):
    """Call one method of the scheduler; return its result as plain data."""
    match what:
        case "ask":
            tag, num_hosts = arguments
            hosts = tuple(
                HostWish(index=index, kind="", num_cpus=1, memory_bytes=None, num_gpus=0) for index in range(num_hosts)
            )
            order = AllocationOrder(tag=tag, job_name=f"job-{tag[-1]}", hosts=hosts, limit_s=600, grace_s=30.0)
            return await scheduler.ask(order)
        case "allocations":
            return {tag: to_plain(one) for tag, one in (await scheduler.allocations()).items()}
        case "end_host":
            return str(await scheduler.end_host(*arguments))
        case "end":
            return str(await scheduler.end(*arguments))
        case "why_not_proved":
            return scheduler.why_not_proved(*arguments)
    raise AssertionError(what)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
