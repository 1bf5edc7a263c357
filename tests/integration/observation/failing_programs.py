"""Programs of several ranks: rank `doomed` fails as `kind` says, while its peers hold connections to it."""

_FAIL = """
import os, signal, socket, sys, threading, time
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
doomed, kind = int(arguments["--doomed"]), arguments["--kind"]

def fail():
    if kind == "value": raise ValueError("no such column: label")
    if kind == "module": import no_such_module
    if kind == "exit": sys.exit(3)
    if kind == "words": sys.exit("the learning rate is negative")
    if kind == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if kind == "segv": os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "abort": os.abort()
    if kind == "memory": bytearray(1 << 60)
    if kind == "limit": bytearray(1 << 30)
    if kind == "cuda": raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if kind == "disk": raise OSError(28, "No space left on device", "/opt/ml/checkpoints/a.pt")
    if kind == "data": open("/opt/ml/input/data/none/part-0.csv")
    if kind == "refused": socket.create_connection(("127.0.0.1", 1), 5)
    if kind == "hard": os._exit(7)
    if kind == "passing": raise RuntimeError("bucket 7 of channel 2: set NCCL_DEBUG and use gloo")
    if kind == "file":
        open("/opt/ml/output/failure", "w").write("the table has no rows")
        sys.exit(1)
    if kind == "late":
        threading.Thread(target=time.sleep, args=(1.5,)).start()
        raise KeyError("late")
    if kind == "chain":
        try:
            {}["first"]
        except KeyError as error:
            raise RuntimeError("while reading the index") from error
    if kind == "long": raise ValueError("x" * 5000)
"""
# Plain TCP: the peers die within milliseconds, most of them before the rank that failed has ended.
SOCKETS = (
    _FAIL
    + """
rank = int(os.environ["RANK"])
port = int(os.environ["MASTER_PORT"]) + 7
hosts = __import__("json").loads(os.environ["SM_HOSTS"])
if rank == doomed:
    server = socket.create_server(("0.0.0.0", port), backlog=8)
    server.settimeout(60)
    peers = [server.accept()[0] for _ in range(3)]
    fail()
else:
    until = time.monotonic() + 60
    while True:
        try:
            peer = socket.create_connection((hosts[doomed // 2], port), 5)
            break
        except OSError:
            assert time.monotonic() < until, "the doomed rank never listened"
            time.sleep(0.05)
    peer.settimeout(120)
    peer.recv(1)
    raise ConnectionResetError("Connection closed by peer")
"""
)
GLOO = (
    _FAIL
    + """
import torch
import torch.distributed as distributed
distributed.init_process_group("gloo")
values = torch.ones(10_000)
for step in range(1_000_000):
    if step == 20 and distributed.get_rank() == doomed: fail()
    distributed.all_reduce(values)
    values /= distributed.get_world_size()
"""
)
MPI = (
    _FAIL
    + """
from mpi4py import MPI
world = MPI.COMM_WORLD
for step in range(1_000_000):
    if step == 20 and world.Get_rank() == doomed: fail()
    world.allreduce(step)
"""
)
# The address of an object store chosen by the program, at which no server listens.
STORE = """
import boto3
from botocore.config import Config
boto3.client(
    "s3", endpoint_url="http://127.0.0.1:9", region_name="us-west-2", aws_access_key_id="a", aws_secret_access_key="b",
    config=Config(retries={"total_max_attempts": 1}),
).get_object(Bucket="none", Key="none")
"""
