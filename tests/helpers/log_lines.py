"""Lines for the tests of the log store, and a reader that works like clients."""

from datetime import UTC, datetime

from clary.contract.agent_protocol import LogBlock
from clary.control.store.log_files.log_pages import LogEvent
from clary.control.store.log_files.logs import LogStore

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
STREAM = "job/algo-1-1767225600"


class FakeClock:
    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return 0.0


def lines(*texts: str, at_ms: int = 1000, step_ms: int = 1) -> list[LogBlock]:
    return [LogBlock(at_ms=at_ms + number * step_ms, text=text) for number, text in enumerate(texts)]


def numbered(count: int, first: int = 0) -> list[LogBlock]:
    return [LogBlock(at_ms=1000 + number, text=str(number)) for number in range(first, first + count)]


def texts(events: tuple[LogEvent, ...]) -> list[str]:
    return [event.message for event in events]


async def read_on(logs: LogStore, token: str | None, **query: int) -> tuple[list[str], str]:
    """Read forward as clients do, until a page returns the token of its request."""
    found: list[str] = []
    for _ in range(10_000):
        page = await logs.get_events(STREAM, from_head=True, token=token, **query)
        found += texts(page.events)
        if page.next_forward_token == token:
            assert page.events == ()
            return found, page.next_forward_token
        token = page.next_forward_token
    raise AssertionError("paging does not end")
