"""Injection of faults over HTTP: into rehearsals only, into hosts that exist, and only while they train."""

import json
from dataclasses import replace

import pytest
from own_pages import FewParts
from server_parts import FakeServices, document, request, running_job

from clary.base.errors import EngineError, WireError
from clary.contract.agent_protocol import HostPhase
from clary.control.server.actions.rehearsal_actions import RehearsalActions

PATH = "/clary/v1/rehearsal"
JOB = "/clary/v1/jobs/job-1"
REHEARSAL = {"Environment": {"CLARY_REHEARSAL": "1"}, "AlgorithmSpecification": {"TrainingImage": "image:1"}}


class FakeFaults:
    """Records the faults that it is asked to inject."""

    def __init__(self, refusals=None, error=None):
        self.done, self._refusals, self._error = [], refusals or {}, error

    def refusals(self):
        return self._refusals

    async def kill_host(self, plan, host):
        self._do("kill", host)

    async def kill_rank(self, plan, rank):
        self._do("kill-rank", rank)

    async def connect(self, plan, hosts, *, up):
        self._do("connect", tuple(hosts), up)

    def largest_disk_bytes(self):
        return 1 << 30

    async def connect_two(self, plan, hosts, *, up):
        self._do("connect-two", hosts, up)

    async def fill_disk(self, plan, host, *, is_full):
        self._do("disk", host, is_full)

    async def set_rate(self, plan, host, rate_mbit_s):
        self._do("rate", host, rate_mbit_s)

    async def records(self, job_name, attempt):
        return [{"host": "algo-1", "name": f"0-{attempt}.jsonl", "text": ""}]

    def _do(self, *what):
        if self._error is not None:
            raise self._error
        self.done.append(what)


def people(faults, **changes):
    job = running_job(**{"request": REHEARSAL, **changes})
    return FewParts(FakeServices([job], (), None), strikes=RehearsalActions(faults))


async def strike(faults, body, *, token="token", **changes):
    data = json.dumps(body).encode()
    return await people(faults, **changes).handle(request(f"{JOB}/strike", method="POST", body=data, token=token))


async def refused(faults, body, **options):
    with pytest.raises(WireError) as caught:
        await strike(faults, body, **options)
    assert not faults.done
    return caught.value


@pytest.mark.parametrize(
    ("body", "done"),
    [
        ({"kind": "kill", "hosts": ["algo-2"]}, ("kill", "algo-2")),
        ({"kind": "kill-rank", "rank": 3}, ("kill-rank", 3)),
        ({"kind": "partition", "hosts": ["algo-1", "algo-2"]}, ("connect", ("algo-1", "algo-2"), False)),
        ({"kind": "partition", "hosts": ["algo-1"], "is_over": True}, ("connect", ("algo-1",), True)),
        (
            {"kind": "partition", "hosts": ["algo-1", "algo-2"], "between": True},
            ("connect-two", ("algo-1", "algo-2"), False),
        ),
        (
            {"kind": "partition", "hosts": ["algo-1", "algo-2"], "between": True, "is_over": True},
            ("connect-two", ("algo-1", "algo-2"), True),
        ),
        ({"kind": "disk-full", "hosts": ["algo-1"]}, ("disk", "algo-1", True)),
        ({"kind": "disk-full", "hosts": ["algo-1"], "is_over": True}, ("disk", "algo-1", False)),
        ({"kind": "slow", "hosts": ["algo-1"], "rate_mbit_s": 2.5}, ("rate", "algo-1", 2.5)),
        ({"kind": "slow", "hosts": ["algo-1"], "rate_mbit_s": 2.5, "is_over": True}, ("rate", "algo-1", None)),
    ],
)
async def test_a_fault_is_injected_into_a_training_rehearsal(body, done):
    faults = FakeFaults()
    answer = document(await strike(faults, body))
    assert answer["name"] == "job-1"
    assert faults.done == [done]


async def test_a_job_that_is_no_rehearsal_gets_no_faults_and_has_no_records():
    faults = FakeFaults()
    error = await refused(faults, {"kind": "kill", "hosts": ["algo-1"]}, request=running_job().request)
    assert (error.code, error.http_status) == ("AccessDenied", 403)
    assert (
        "job-1 is not a rehearsal and is not struck; create a rehearsal of it with: clary rehearse job-1"
        in error.message
    )
    with pytest.raises(WireError, match="is not a rehearsal"):
        await people(faults, request=running_job().request).handle(request(f"{JOB}/records"))


async def test_a_wrong_token_injects_no_fault_and_reads_nothing():
    faults = FakeFaults()
    assert (await refused(faults, {"kind": "kill", "hosts": ["algo-1"]}, token="other")).http_status == 403
    with pytest.raises(WireError, match="does not accept the token"):
        await people(faults).handle(request(PATH, token="other"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "expected kind"),
        ({"kind": "flood"}, "expected kind"),
        ({"kind": "kill"}, "expected a list of hosts"),
        ({"kind": "kill", "hosts": "algo-1"}, "expected a list of hosts"),
        ({"kind": "kill", "hosts": ["algo-1", {}]}, "expected a list of hosts"),
        ({"kind": "kill", "hosts": [["algo-1"]]}, "expected a list of hosts"),
        ({"kind": "kill", "hosts": ["algo-9"]}, "no host algo-9; it has algo-1, algo-2"),
        ({"kind": "partition", "hosts": ["algo-1"], "between": True}, "takes two hosts, got algo-1"),
        ({"kind": "partition", "hosts": ["algo-1", "algo-1"], "between": True}, "takes two hosts"),
        ({"kind": "kill-rank", "rank": "0"}, "rank must be a number"),
        ({"kind": "kill-rank", "rank": True}, "rank must be a number"),
        ({"kind": "slow", "hosts": ["algo-1"]}, "rate_mbit_s must be a number"),
        ({"kind": "slow", "hosts": ["algo-1"], "rate_mbit_s": -1}, "rate_mbit_s must be a number"),
    ],
)
async def test_an_invalid_fault_is_refused(body, words):
    assert words in (await refused(FakeFaults(), body)).message


async def test_a_job_between_two_attempts_gets_no_faults():
    job = running_job()
    prepared = {
        name: replace(record, facts=replace(record.facts, phase=HostPhase.PREPARING))
        for name, record in job.hosts.items()
    }
    error = await refused(FakeFaults(), {"kind": "kill", "hosts": ["algo-1"]}, hosts=prepared)
    assert "job-1 is not training now; it is Training" in error.message


async def test_a_fault_that_is_not_possible_here_is_listed_beforehand_and_refused():
    faults = FakeFaults(refusals={"partition": "no network of its own"})
    answer = document(await people(faults).handle(request(PATH)))
    assert answer == {"refusals": {"partition": "no network of its own"}, "largest_disk_bytes": 1 << 30}
    error = await refused(faults, {"kind": "partition", "hosts": ["algo-1"]})
    assert error.message == "partition: no network of its own"


async def test_a_fault_that_could_not_be_injected_gives_the_reason():
    error = await refused(FakeFaults(error=EngineError("its anchor is gone")), {"kind": "kill", "hosts": ["algo-1"]})
    assert (error.http_status, error.message) == (400, "its anchor is gone")


async def test_records_belong_to_the_requested_attempt():
    answer = document(await people(FakeFaults(), attempt=2).handle(request(f"{JOB}/records", query="attempt=1")))
    assert [record["name"] for record in answer["records"]] == ["0-1.jsonl"]
    with pytest.raises(WireError, match="has no attempt 3"):
        await people(FakeFaults(), attempt=2).handle(request(f"{JOB}/records", query="attempt=3"))


async def test_the_request_of_any_job_can_be_read():
    assert document(await people(FakeFaults()).handle(request(f"{JOB}/request"))) == {"request": REHEARSAL}
