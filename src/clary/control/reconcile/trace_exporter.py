"""Sends a trace of every ended job to an OpenTelemetry collector, if the setting `otlp_endpoint` names one.

Where: it listens to the changes of jobs (`JobHub`); the service runs `send_all`. Jobs do not wait for it: traces beyond
`MAX_WAITING`, and traces that the collector does not accept within `DEADLINE_S`, are counted, logged and dropped.
Source: OTLP/HTTP: POST to /v1/traces; 429, 502, 503, 504 and broken connections are retried, other errors are not.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

import aiohttp

from clary.control.analysis.job_trace import trace_request
from clary.control.jobs.training_job import TrainingJob

PATH = "/v1/traces"
DEADLINE_S = 30.0  # limit of one trace with all its tries
TRY_S = 10.0  # limit of one try
# pause after the first failed try; doubled after each try, then shortened at random by up to half, so that services do
# not retry together
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 8.0
MAX_WAITING = 200  # jobs
MAX_REMEMBERED = 10_000  # sent jobs: the hub announces each one several times after its end
RETRIED = frozenset({429, 502, 503, 504})

logger = logging.getLogger(__name__)


class TraceExporter:
    """Collects ended jobs and sends their traces, one after the other.

    Args:
        endpoint: address of the collector, without /v1/traces; empty without a collector.
        headers: `name=value,name=value`, sent with every request.
        region: region of the service.
        deadline_s: limit for one trace.
    """

    def __init__(self, endpoint: str, *, headers: str = "", region: str = "", deadline_s: float = DEADLINE_S) -> None:
        self._url = endpoint.rstrip("/") + PATH if endpoint else ""
        self._headers = headers_of(headers)
        self._region = region
        self._deadline_s = deadline_s
        self._waiting: deque[TrainingJob] = deque()
        self._taken: OrderedDict[str, None] = OrderedDict()
        self._has_some = asyncio.Event()
        self.num_sent = 0
        self.num_dropped = 0

    def take(self, job: TrainingJob) -> None:
        """Queue the trace of an ended job, unless this service has queued it before; return at once."""
        if not self._url or not job.is_terminal:
            return
        key = f"{job.arn} {job.created_at.isoformat()}"
        if key in self._taken:
            return
        self._taken[key] = None
        if len(self._taken) > MAX_REMEMBERED:
            self._taken.popitem(last=False)
        if len(self._waiting) >= MAX_WAITING:
            self._drop(job, f"{MAX_WAITING} others wait already")
            return
        self._waiting.append(job)
        self._has_some.set()

    async def send_all(self) -> None:
        """Send queued traces until cancelled."""
        if not self._url:
            return
        timeout = aiohttp.ClientTimeout(total=TRY_S)
        async with aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session:
            while True:
                while self._waiting:  # before the first wait, too: an error may have ended an earlier call
                    await self._send(session, self._waiting.popleft())
                self._has_some.clear()
                await self._has_some.wait()

    async def _send(self, session: aiohttp.ClientSession, job: TrainingJob) -> None:
        problem = ""
        try:
            body = await asyncio.to_thread(trace_request, [job], region=self._region)
            async with asyncio.timeout(self._deadline_s):
                pause_s = FIRST_PAUSE_S
                while True:
                    is_taken, can_try_again, problem, wanted_pause_s = await self._try(session, body)
                    if is_taken:
                        self.num_sent += 1
                        return
                    if not can_try_again:
                        break
                    await asyncio.sleep(max(wanted_pause_s, pause_s * random.uniform(0.5, 1)))
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        except TimeoutError:
            problem = problem or f"no answer within {self._deadline_s:g} s"
        except Exception as error:
            # A record that cannot be converted to a trace must not prevent others from being sent.
            logger.exception("the trace of job %s cannot be made", job.name)
            problem = f"{type(error).__name__}"
        self._drop(job, problem)

    async def _try(self, session: aiohttp.ClientSession, body: Mapping[str, Any]) -> tuple[bool, bool, str, float]:
        """Return whether a trace was accepted, whether another try can help, the error, and the seconds to wait."""
        try:
            async with session.post(self._url, json=body, allow_redirects=False) as answer:
                if answer.ok:
                    return True, False, "", 0.0
                wait_text = answer.headers.get("Retry-After", "")
                wait_s = float(wait_text) if wait_text.isdecimal() else 0.0
                return False, answer.status in RETRIED, f"status {answer.status}", wait_s
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return False, True, type(error).__name__, 0.0  # the error's text may have the address with a secret
        except ValueError as error:
            return False, False, type(error).__name__, 0.0

    def _drop(self, job: TrainingJob, problem: str) -> None:
        self.num_dropped += 1
        logger.warning(
            "the trace of job %s was not taken by otlp_endpoint: %s; %d dropped so far",
            job.name,
            problem,
            self.num_dropped,
        )


def headers_of(text: str) -> dict[str, str]:
    """Parse `name=value,name=value`; parts without a name are omitted."""
    pairs = (part.partition("=") for part in text.split(","))
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip()}
