"""Hosts on a machine with a GPU: a host with the GPU computes on it, a host without it sees no GPU."""

import dataclasses
import json
import shutil
import sys
import textwrap

import pytest
from host_world import HostWorld, Listener

from clary.agent.host.program import Program
from clary.agent.host.sandbox import ProcessSpec
from clary.contract.launch_plan import Resources

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs an NVIDIA GPU: nvidia-smi is not here"),
    pytest.mark.timeout(180),
]

PROGRAM = textwrap.dedent(
    """
    import json, os, socket
    import torch, torch.distributed as dist
    facts = {"host": socket.gethostname(), "has_gpu": torch.cuda.is_available(),
             "devices": sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))}
    if facts["has_gpu"]:
        facts["name"] = torch.cuda.get_device_name(0)
        x = torch.ones(1024, 1024, device="cuda", dtype=torch.bfloat16)
        facts["product"] = float((x @ x)[0, 0])
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="7777")
        dist.init_process_group("nccl")
        y = torch.full((4,), 3.0, device="cuda")
        dist.all_reduce(y)
        facts["all_reduce"] = float(y[0])
        dist.destroy_process_group()
    print("FACTS " + json.dumps(facts), flush=True)
    os._exit(0)
    """
)


def run_on_host(world, name, gpu_indices):
    listener = Listener()
    resources = Resources(num_cpus=4, memory_bytes=None, gpu_indices=gpu_indices)
    visible = (sys.prefix, sys.base_prefix)
    sandbox = dataclasses.replace(world.sandbox(name, visible_folders=visible), resources=resources)
    environment = {
        "PATH": "/usr/local/nvidia/bin:/usr/local/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/usr/local/nvidia/lib",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpu_indices)),
        "HOME": "/root",
    }
    process = ProcessSpec(
        argv=(sys.executable, "-c", PROGRAM), environment=environment, working_folder="/", rank=None, local_rank=0
    )
    with Program.start([process], sandbox, on_output=listener) as program:
        result = program.wait(150)
    assert result is not None, listener.text()
    assert [item.exit_code for item in result.exits] == [0], listener.text()
    line = next(line for line in listener.text().splitlines() if line.startswith("FACTS "))
    return json.loads(line.removeprefix("FACTS "))


@pytest.fixture(params=["root", "plain"])
def world(request):
    made = HostWorld(request.param)
    yield made
    made.close()


def test_a_host_with_a_gpu_computes_and_communicates_on_it(world):
    facts = run_on_host(world, "algo-1", (0,))
    assert facts["has_gpu"], facts
    assert (facts["product"], facts["all_reduce"]) == (1024.0, 3.0)


def test_a_host_without_a_gpu_sees_none(world):
    facts = run_on_host(world, "algo-1", ())
    assert not facts["has_gpu"], facts
    if world.mode == "root":
        assert facts["devices"] == []
