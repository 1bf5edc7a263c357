"""Program of an attacked job: it connects to its peers by a framework, prints its open ports, and keeps stepping.

The first host prints a line `OPEN {...}` with its open ports and addresses. The second host prints `MATE {...}` with
those ports of the first that it has reached. After each step every host prints `step NUMBER`.
"""

import argparse
import base64
import glob
import json
import os
import socket
import struct
import subprocess
import sys
import time

MEETING_PORT = 9345
STEP_S = 0.2
NUM_STEPS = 2000  # more steps than any test waits for


class Horovod:
    """`horovod.torch`: the store of rank 0."""

    def begin(self):
        """Meet the peers."""
        import horovod.torch as hvd
        import torch

        self._hvd, self._ones = hvd, torch.ones(4)
        hvd.init()

    def step(self):
        """Exchange something with the peers."""
        assert self._hvd.allreduce(self._ones, name="step").tolist() == [1.0] * 4


class Torch:
    """`torch.distributed` over gloo: torch's own store on MASTER_PORT."""

    def begin(self):
        """Meet the peers."""
        import torch
        import torch.distributed as dist

        self._dist, self._ones = dist, torch.ones(4)
        dist.init_process_group("gloo")

    def step(self):
        """Exchange something with the peers."""
        self._dist.all_reduce(self._ones, op=self._dist.ReduceOp.MAX)


class DeepSpeed(Torch):
    """DeepSpeed's launcher on each host, started as by its runner, with this program as its child."""

    def begin(self):
        """Start again as the child of a launcher, and meet the peers."""
        if "DOORS_LAUNCHED" not in os.environ:
            hosts = json.loads(os.environ["SM_HOSTS"])
            world = base64.urlsafe_b64encode(json.dumps({host: [0] for host in hosts}).encode()).decode()
            command = [sys.executable, "-m", "deepspeed.launcher.launch", f"--world_info={world}"]
            command += [
                f"--node_rank={hosts.index(os.environ['SM_CURRENT_HOST'])}",
                f"--master_addr={os.environ['MASTER_ADDR']}",
            ]
            command += [f"--master_port={os.environ['MASTER_PORT']}", *sys.argv]
            sys.exit(subprocess.call(command, env={**os.environ, "DOORS_LAUNCHED": "1"}))
        import deepspeed
        import torch
        import torch.distributed as dist

        self._dist, self._ones = dist, torch.ones(4)
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)


class Jax:
    """`jax.distributed`: a coordinator."""

    def begin(self):
        """Meet the peers."""
        import jax
        from jax.experimental import multihost_utils

        jax.distributed.initialize()
        self._gather = multihost_utils.process_allgather
        self._ones = jax.numpy.ones(4)

    def step(self):
        """Exchange something with the peers."""
        assert self._gather(self._ones).shape == (2, 4)


class Mirrored:
    """TensorFlow's MultiWorkerMirroredStrategy: a gRPC server on each host."""

    def begin(self):
        """Meet the peers."""
        import tensorflow as tf

        self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
        strategy = self._strategy

        @tf.function
        def reduced():
            def each():
                return tf.distribute.get_replica_context().all_reduce("sum", tf.ones(()))

            return strategy.reduce("MEAN", strategy.run(each), axis=None)

        self._reduced = reduced

    def step(self):
        """Exchange something with the peers."""
        assert float(self._reduced()) == 2.0


class Servers:
    """TensorFlow's parameter servers: a gRPC server and a worker on each host, here with graphs."""

    def begin(self):
        """Meet the peers."""
        import tensorflow as tf

        v1 = tf.compat.v1
        v1.disable_eager_execution()
        config = json.loads(os.environ["TF_CONFIG"])
        task = config["task"]
        self._server = tf.distribute.Server(config["cluster"], job_name=task["type"], task_index=task["index"])
        with tf.device("/job:ps/task:0"):
            count = v1.get_variable("count", initializer=0.0)
            self._add = v1.assign_add(count, 1.0)
        while True:
            try:
                self._session = v1.Session(self._server.target)
                if task["type"] == "master":
                    self._session.run(v1.global_variables_initializer())
                elif not self._session.run(v1.is_variable_initialized(count)):
                    raise tf.errors.FailedPreconditionError(None, None, "not yet")
                return
            except (tf.errors.FailedPreconditionError, tf.errors.UnavailableError):
                time.sleep(0.5)

    def step(self):
        """Increment a variable that all hosts share."""
        assert self._session.run(self._add) >= 1


class MXNet:
    """MXNet's scheduler and servers."""

    def begin(self):
        """Meet the peers."""
        import mxnet as mx

        self._mx = mx
        self._store = mx.kv.create("dist_sync")
        self._store.init("0", mx.nd.zeros(4))

    def step(self):
        """Exchange something with the peers."""
        self._store.push("0", self._mx.nd.ones(4))
        out = self._mx.nd.zeros(4)
        self._store.pull("0", out=out)
        assert out.asnumpy().tolist() == [2.0] * 4


WAYS = {
    "horovod": Horovod,
    "torch": Torch,
    "deepspeed": DeepSpeed,
    "jax": Jax,
    "mirrored": Mirrored,
    "servers": Servers,
    "mxnet": MXNet,
}


def listening():
    """Return (address, port) of every listener in the network of this host."""
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with open(f"/proc/net/{table}", encoding="ascii") as file:
            for line in file.read().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A":
                    address, _, port = words[1].partition(":")
                    raw = bytes.fromhex(address)
                    packed = b"".join(raw[start : start + 4][::-1] for start in range(0, len(raw), 4))
                    found.add((socket.inet_ntop(family, packed), int(port, 16)))
    return sorted(found)


def own_listening():
    """Return (address, port) of listeners of this job's processes only, for hosts that share the machine's network."""
    inodes = set()
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            with open(f"/proc/{path.split('/')[2]}/environ", "rb") as file:
                is_ours = f"TRAINING_JOB_NAME={os.environ['TRAINING_JOB_NAME']}".encode() in file.read()
            if is_ours:
                inodes.add(os.readlink(path))
        except OSError:
            continue
    ours = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}", encoding="ascii") as file:
            for line in file.read().splitlines()[1:]:
                words = line.split()
                if f"socket:[{words[9]}]" in inodes:
                    ours.add(int(words[1].rpartition(":")[2], 16))
    return [place for place in listening() if place[1] in ours]


def abstract_sockets():
    """Return the names of listening abstract Unix sockets in this host's network."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        return sorted({line.split()[-1] for line in file if " 00010000 " in line and "@" in line})


def is_reached(place):
    """Return whether a process listens at an address and port."""
    try:
        socket.create_connection(place, timeout=5).close()
    except OSError:
        return False
    return True


def tell_open(is_shared):
    """Print the open ports of this host; return an open abstract socket, such as ranks of one host use to meet."""
    named = socket.socket(socket.AF_UNIX)
    named.bind(f"\0victim-{os.getpid()}")
    named.listen()
    told = {
        "open": own_listening() if is_shared else listening(),
        "address": socket.gethostbyname(socket.gethostname()),
        "named": abstract_sockets(),
        "master_port": int(os.environ["MASTER_PORT"]),
    }
    print(f"OPEN {json.dumps(told)}", flush=True)
    return named


def pass_on(places):
    """Send the open ports of the first host to the second."""
    with socket.create_server(("0.0.0.0", MEETING_PORT)) as server:
        client, _ = server.accept()
        with client:
            data = json.dumps(places).encode()
            client.sendall(struct.pack("<I", len(data)) + data)


def tell_reached():
    """Print those of the first host's ports that this host reaches."""
    deadline = time.monotonic() + 60
    while True:
        try:
            sock = socket.create_connection(("algo-1", MEETING_PORT), timeout=10)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    with sock, sock.makefile("rb") as file:
        (length,) = struct.unpack("<I", file.read(4))
        places = json.loads(file.read(length))
    reached = [port for address, port in places if is_reached(("algo-1", port))]
    print(f"MATE {json.dumps(reached)}", flush=True)


def main():
    """Meet the peers, print the ports, and keep stepping until the job is stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=sorted(WAYS), required=True)
    parser.add_argument("--shared", action="store_true", help="hosts share the machine's network")
    options, _ = parser.parse_known_args()
    way = WAYS[options.way]()
    way.begin()
    way.step()
    is_first = os.environ["SM_CURRENT_HOST"] == "algo-1"
    kept = tell_open(options.shared) if is_first else None
    if not options.shared:
        if is_first:
            pass_on(listening())
        else:
            tell_reached()
    for step in range(NUM_STEPS):
        way.step()
        print(f"step {step}", flush=True)
        time.sleep(STEP_S)
    if kept is not None:
        kept.close()


main()
