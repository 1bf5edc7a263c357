"""Routes for other machines: enrolment and bundle, for boots, strangers and a service without nodes."""

import json
from types import SimpleNamespace

import pytest
from own_pages import FewParts
from server_parts import document, request

from clary.base.errors import EngineError, WireError
from clary.base.plain import to_plain
from clary.contract.enrolment import Admission, Enrolment, NodeReport, Standby
from clary.control.engines.cluster.bundle import Bundle
from clary.control.engines.cluster.scheduler import NodeKind

TAG = "pool_0123456789ab"
REPORT = NodeReport(node="n1", addresses=(), used_address="10.0.0.1", num_cpus=8, memory_bytes=1)
NO_SESSIONS = SimpleNamespace(cookie_name=lambda *, is_secure: "session")
BODY = json.dumps(to_plain(Enrolment(claim="a" * 32, proof="p", report=REPORT))).encode()


class FakeEnrolments:
    """Returns one answer, and records the requests."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    async def enrol(self, tag, index, asked):
        self.asked.append((tag, index, asked))
        return self.answer


def parts(answer):
    enrolments = FakeEnrolments(answer)
    cluster = SimpleNamespace(enrolments=enrolments, bundle=Bundle("d" * 64, b"zip"))
    return FewParts(cluster=cluster, sessions=NO_SESSIONS), enrolments


def posted(path=f"/clary/v1/allocations/{TAG}/1", body=BODY):
    return request(path, token=None, method="POST", body=body)


async def test_a_boot_is_told_to_wait_and_then_receives_its_tokens():
    waiting, asked = parts(Standby(bundle="d" * 64))
    answer = await waiting.handle(posted())
    assert (answer.status, document(answer)["bundle"]) == (202, "d" * 64)
    assert asked.asked[0][:2] == (TAG, 1)
    names = {"bundle": "d" * 64, "pool": TAG, "pool_token": "P", "job": "j", "attempt": 1, "agent_token": "A"}
    ready, _ = parts(Admission(host="algo-2", **names))
    answer = await ready.handle(posted())
    assert (answer.status, document(answer)["agent_token"]) == (200, "A")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"[" * 4000, b'{"claim": 1}', b"\xff"])
async def test_a_body_that_is_no_enrolment_is_refused(body):
    waiting, asked = parts(Standby(bundle="d" * 64))
    with pytest.raises(WireError) as refused:
        await waiting.handle(posted(body=body))
    assert refused.value.http_status == 400
    assert asked.asked == []


@pytest.mark.parametrize("path", [f"{TAG}/x", f"{TAG}/123456", "other/1", f"{TAG}/1/more", f"{TAG}"])
async def test_a_malformed_path_reaches_no_enrolment(path):
    waiting, asked = parts(Standby(bundle="d" * 64))
    with pytest.raises(WireError) as refused:
        await waiting.handle(posted(f"/clary/v1/allocations/{path}"))
    assert refused.value.http_status in (404, 410)
    assert asked.asked == []


async def test_the_bundle_is_served_by_its_digest_only():
    own, _ = parts(None)
    answer = await own.handle(request("/clary/v1/agent/" + "d" * 64, token=None))
    assert (answer.status, answer.body) == (200, b"zip")
    for digest in ("e" * 64, "x"):
        with pytest.raises(WireError) as refused:
            await own.handle(request(f"/clary/v1/agent/{digest}", token=None))
        assert refused.value.http_status == 404


async def test_a_service_with_hosts_on_its_own_machine_refuses_boots():
    with pytest.raises(WireError, match="engine is local") as refused:
        await FewParts(sessions=NO_SESSIONS).handle(posted())
    assert refused.value.http_status == 410
    with pytest.raises(WireError, match="engine is local"):
        await FewParts(sessions=NO_SESSIONS).handle(request("/clary/v1/agent/" + "d" * 64, token=None))


async def test_capacity_names_the_kinds_of_nodes_or_this_machine():
    async def capacity():
        return []

    remarks = ('[slurm."*"] selects no node',)
    scheduler = SimpleNamespace(name="slurm", capacity=capacity, remarks=remarks)
    cluster = SimpleNamespace(scheduler=scheduler, service_url="https://head:4571", kinds=None)
    page = document(await FewParts(cluster=cluster).handle(request("/clary/v1/capacity")))
    assert page == {
        "engine": "slurm",
        "waits_by_itself": True,
        "url": "https://head:4571",
        "num_nodes": 0,
        "kinds": [],
        "remarks": ['[slurm."*"] selects no node'],
    }

    async def no_answer():
        raise EngineError("Slurm does not answer: squeue: Unable to contact slurm controller", retryable=True)

    kind = NodeKind(name="cpu", num_cpus=8, memory_bytes=1, num_gpus=0, num_nodes=3, num_free=2, maps_to="cpu")
    scheduler.capacity, cluster.kinds = no_answer, [kind]
    page = document(await FewParts(cluster=cluster).handle(request("/clary/v1/capacity")))
    assert (page["num_nodes"], [one["name"] for one in page["kinds"]]) == (3, ["cpu"])
    assert page["remarks"][0] == (
        "Slurm does not answer: squeue: Unable to contact slurm controller; the nodes are those of its last answer"
    )
    cluster.kinds = []
    page = document(await FewParts(cluster=cluster).handle(request("/clary/v1/capacity")))
    assert page["remarks"][0] == "Slurm does not answer: squeue: Unable to contact slurm controller"
    facts = {"num_cpus": 8, "memory_bytes": 1 << 34, "num_gpus": 1, "max_hosts": 4, "hosts_held": 3}
    machine = SimpleNamespace(facts=lambda: facts)
    page = document(await FewParts(machine=machine).handle(request("/clary/v1/capacity")))
    assert page["engine"] == "local"
    (kind,) = page["kinds"]
    assert (kind["num_nodes"], kind["num_free"], kind["num_gpus"]) == (4, 1, 1)
    with pytest.raises(WireError) as refused:
        await FewParts(machine=machine).handle(request("/clary/v1/capacity", token="wrong"))
    assert refused.value.http_status == 403
