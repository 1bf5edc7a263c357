"""Attacks by another job, another user and the machine itself on ports of frameworks, which need no authentication.

The private network of a job's hosts isolates these ports. The second host of each job does reach the first host's
ports, which shows that the ports that others cannot reach are open.
"""

import contextlib
import json
import os
import socket

import pytest
from boto3_clients import Clients, log_of, unique, wait
from doors_of_jobs import (
    DOORS,
    LIMIT_S,
    answers,
    as_stranger,
    service_of_all_frameworks,
    told,
    victim_request,
    wait_for_more_steps,
    ways,
)
from program_jobs import processes_with, script_request, start
from strangers import places_of_table

from clary.testing.gangs import has_namespaces

pytestmark = [pytest.mark.clients, pytest.mark.timeout(400), pytest.mark.xdist_group("doors-between-jobs")]

PORTS = {  # ports that must be open on the first host, or the test proves nothing
    "horovod": {7779},
    "torch": {7777},
    "deepspeed": {7777},
    "jax": {7778},
    "mirrored": {8890},
    "servers": {2222, 2223},
    "mxnet": {8000},
}


@pytest.fixture(scope="module")
def service():
    with service_of_all_frameworks("auto") as running:
        yield running


@pytest.fixture(scope="module")
def aws(service):
    if not has_namespaces(service.home):
        pytest.skip("hosts share the machine's network here: test_doors_of_plain_processes.py says what is open then")
    return Clients(service)


def reached_on_machine(ports):
    """Return the addresses and ports of this machine that accept connections though no process of it listens there."""
    addresses = {"127.0.0.1", "::1", socket.gethostbyname(socket.gethostname())}
    own = {port for _, port in places_of_table("self")}
    return [[address, port] for port in ports - own for address in sorted(addresses) if answers(address, port)]


def doors_of_processes(pids):
    """Return the readable files of /proc of these processes: environment, memory, descriptors, root and network."""
    found = []
    for pid in pids:
        for name in ("environ", "mem", "fd", "root/etc", "ns/net"):
            path = f"/proc/{pid}/{name}"
            with contextlib.suppress(OSError):
                if name in ("fd", "root/etc"):
                    os.listdir(path)
                elif name == "ns/net":
                    os.readlink(path)
                else:
                    with open(path, "rb") as file:
                        file.read(1)
                found.append(path)
    return found


@pytest.mark.long(70)
@pytest.mark.parametrize("way", ways())
def test_only_a_jobs_own_hosts_reach_the_ports_of_its_framework(service, aws, way):
    interfaces = socket.if_nameindex()
    wanted = PORTS[way]
    victim = start(aws, victim_request(aws, way))
    target = told(aws, victim, "OPEN")
    ports = {port for _, port in target["open"]}
    assert wanted <= ports, target
    assert target["named"], "a socket of a name is there to be found"
    mate = told(aws, victim, "MATE")
    assert wanted <= set(mate), "the job's own host reaches them, so there is something to be reached"
    folders = ("", "cache", "cache/compiled", f"jobs/{victim}", "secrets")
    target["folders"] = [str(service.home / name) for name in folders]
    (service.home / "cache/compiled").mkdir(parents=True, exist_ok=True)
    attacker = script_request(
        aws,
        unique("neighbour"),
        {"train.py": (DOORS / "neighbour_program.py").read_text(), "target.json": json.dumps(target)},
    )
    name = start(aws, attacker)
    facts = wait(aws, name, timeout_s=LIMIT_S)
    assert facts["TrainingJobStatus"] == "Completed", log_of(aws, name)
    (line,) = [line for line in log_of(aws, name) if "TRIED {" in line]
    tried = json.loads(line.partition("TRIED ")[2])
    assert tried["num"] >= 10
    assert not wanted & set(tried["own"]), "the neighbour has a network of its own"
    assert tried["connected"] == []
    assert not [answer for answer in tried["proxy"] if " 200 " in answer], tried["proxy"]
    assert tried["named"] == []
    assert tried["overheard"] in (0, None)
    assert tried["folders"] == [], "the keys, the other job's files and the cache of compiled code"
    assert reached_on_machine(ports) == [], "where nothing of the machine itself listens"
    assert socket.if_nameindex() == interfaces, "the machine has no card in the job's network"
    if os.geteuid() == 0:
        assert as_stranger(lambda: doors_of_processes(processes_with(victim))) == []
    wait_for_more_steps(aws, victim)
    aws.sagemaker.stop_training_job(TrainingJobName=victim)
    assert wait(aws, victim, timeout_s=LIMIT_S)["TrainingJobStatus"] == "Stopped"
