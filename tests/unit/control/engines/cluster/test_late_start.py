"""A scheduler that is unreachable when the service starts."""

import json

import pytest

from clary.base.errors import EngineError
from clary.control.engines.cluster.late_start import BEGIN_AGAIN_S, LateStart
from clary.control.engines.cluster.scheduler import Boot, NodeKind
from clary.testing.fake_clock import FakeClock

BOOT = Boot(script="", service_url="https://head:4571", ca_pem="")
KIND = NodeKind(name="cpu", num_cpus=8, memory_bytes=1 << 33, num_gpus=0, num_nodes=4, num_free=4, maps_to="train")
AWAY = EngineError("Slurm does not answer: scontrol: Unable to contact slurm controller", retryable=True)


class FakeScheduler:
    """Answers unless a test sets an error."""

    name = "slurm"

    def __init__(self):
        self.error = None
        self.num_starts = 0
        self.kinds = [KIND]

    async def start(self, boot):
        self.num_starts += 1
        if self.error is not None:
            raise self.error

    async def capacity(self):
        return self.kinds

    async def allocations(self):
        return {}

    def why_not_proved(self, tag, index, proof):
        return "no"


@pytest.fixture
def scheduler():
    return FakeScheduler()


def late(scheduler, tmp_path, clock):
    return LateStart(scheduler, tmp_path / "slurm" / "kinds.json", clock)


async def test_a_scheduler_that_answers_is_used_directly(scheduler, tmp_path):
    made = late(scheduler, tmp_path, FakeClock())
    await made.start(BOOT)
    assert await made.capacity() == [KIND]
    assert await made.allocations() == {}
    assert made.why_not_proved("t", 0, "p") == "no"
    assert (scheduler.num_starts, made.why_late) == (1, "")


async def test_a_scheduler_that_was_never_reached_fails_the_start(scheduler, tmp_path):
    scheduler.error = AWAY
    with pytest.raises(EngineError, match="Unable to contact"):
        await late(scheduler, tmp_path, FakeClock()).start(BOOT)


async def test_an_unreachable_scheduler_starts_later_with_recorded_nodes_meanwhile(scheduler, tmp_path):
    before = late(scheduler, tmp_path, FakeClock())
    await before.start(BOOT)
    await before.capacity()
    clock = FakeClock()
    made = late(scheduler, tmp_path, clock)
    scheduler.error = AWAY
    await made.start(BOOT)
    assert await made.capacity() == [KIND]
    assert "Unable to contact" in made.why_late
    for call in (made.allocations(), made.ask(None), made.wanted([]), made.end("t"), made.end_host("t", 0)):
        with pytest.raises(EngineError, match="Unable to contact") as refused:
            await call
        assert refused.value.retryable
    with pytest.raises(EngineError):
        made.why_not_proved("t", 0, "p")
    num_starts = scheduler.num_starts
    scheduler.error = None
    with pytest.raises(EngineError):
        await made.allocations()  # the last try was a moment ago
    assert scheduler.num_starts == num_starts
    clock.advance(BEGIN_AGAIN_S)
    assert await made.allocations() == {}
    assert made.why_late == ""


async def test_a_misconfigured_scheduler_fails_the_start_in_spite_of_recorded_nodes(scheduler, tmp_path):
    before = late(scheduler, tmp_path, FakeClock())
    await before.start(BOOT)
    await before.capacity()
    scheduler.error = EngineError("the cluster has AuthType auth/none")
    with pytest.raises(EngineError, match="AuthType"):
        await late(scheduler, tmp_path, FakeClock()).start(BOOT)


@pytest.mark.parametrize("text", ["{", "[1]", json.dumps([{"name": 3}])])
async def test_a_damaged_record_of_nodes_counts_as_missing(scheduler, tmp_path, text):
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "kinds.json").write_text(text)
    scheduler.error = AWAY
    with pytest.raises(EngineError, match="Unable to contact"):
        await late(scheduler, tmp_path, FakeClock()).start(BOOT)
