"""Hosts that share this machine's network: ports of frameworks that are open to its users or to the whole network.

docs/security.md and `clary doctor` name these ports. Ranks over our collectives authenticate there too. The libraries'
own ports need no authentication: other users of this machine reach them, and so does the network if they listen on all
addresses.
"""

import contextlib
import os

import pytest
from boto3_clients import Clients, log_of, wait
from doors_of_jobs import (
    LIMIT_S,
    answers,
    as_stranger,
    service_of_all_frameworks,
    told,
    victim_request,
    wait_for_more_steps,
    ways,
)
from program_jobs import start
from strangers import ATTACKS, assert_no_proof, pestering, silent

pytestmark = [
    pytest.mark.clients,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("doors-of-plain-processes"),
]

# Offsets from the master port at which a job listens on all addresses; its other ports listen on loopback.
TO_THE_NETWORK = {
    "torch": {0},
    "deepspeed": {0},
    "mirrored": {1, 2},
    "servers": {1, 2, 3, 4},
    "jax": set(),
    "mxnet": set(),
}
TO_EVERY_USER = {
    "horovod": 2,
    "torch": 0,
    "deepspeed": 0,
    "jax": 1,
    "mirrored": 1,
    "servers": 2,
    "mxnet": 1,
}  # offset of one port of each framework
RUN_CODE = ("mirrored", "servers", "mxnet")


@pytest.fixture(scope="module")
def service():
    with service_of_all_frameworks("processes") as running:
        yield running


@pytest.fixture(scope="module")
def aws(service):
    return Clients(service)


def knock(port):
    """Run every attack of a stranger on a port of loopback; return the answers."""
    place = ("127.0.0.1", port)
    quiet = silent(place)
    said = []
    for attack in ATTACKS:
        with contextlib.suppress(OSError):
            said.append(attack(place).hex())
    for sock in quiet:
        sock.close()
    return said


@pytest.mark.long(30)
@pytest.mark.parametrize("way", ways())
def test_open_ports_on_a_shared_network_are_the_documented_ones(aws, way):
    victim = start(aws, victim_request(aws, way, {"shared": "true"}))
    target = told(aws, victim, "OPEN")
    master = target["master_port"]
    everywhere = {port for address, port in target["open"] if address in ("0.0.0.0", "::")}
    if way != "horovod":  # with horovod, mpirun listens on all addresses, at ports chosen by the kernel
        assert {port - master for port in everywhere} == TO_THE_NETWORK[way], target
        rest = {address for address, port in target["open"] if port not in everywhere}
        assert rest <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, target
    door = master + TO_EVERY_USER[way]
    assert door in {port for _, port in target["open"]}, target
    assert as_stranger(lambda: answers("127.0.0.1", door))
    notes = [line for line in log_of(aws, victim) if "ask for no proof" in line]
    assert bool(notes) == (way in RUN_CODE), "the log says so"
    if way == "horovod":
        assert door not in everywhere, "the store of ranks is of loopback"
        assert_no_proof([bytes.fromhex(answer) for answer in as_stranger(lambda: knock(door))])
    with contextlib.ExitStack() as pests:
        for port in sorted({port for _, port in target["open"]}):
            for sock in pestering(("127.0.0.1", port)):
                pests.enter_context(sock)
        if way == "mxnet":  # its servers crash on unknown messages, which ends the job
            facts = wait(aws, victim, timeout_s=60)
            assert facts["TrainingJobStatus"] == "Failed"
            assert any("parameter server ended with signal 6" in line for line in log_of(aws, victim))
            return
        wait_for_more_steps(aws, victim, 10)
    wait_for_more_steps(aws, victim, 10)
    aws.sagemaker.stop_training_job(TrainingJobName=victim)
    assert wait(aws, victim, timeout_s=LIMIT_S)["TrainingJobStatus"] == "Stopped"


def test_doctor_reports_that_ports_of_frameworks_need_no_proof(service):
    said = service.clary("doctor", check=False).stdout
    assert "Ports of frameworks ask for no proof" in " ".join(said.split())
