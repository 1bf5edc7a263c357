"""Posts a notice to the setting `rule_webhook_url` when a rule of a job has a finding.

Where: it listens to the hub, the service runs `send_all`. Jobs do not wait for notices: after two failed tries of at
most `DEADLINE_S` each, a notice is logged and dropped. Notices beyond `MAX_WAITING` are dropped likewise.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

import aiohttp

from clary.control.jobs.rules.rule_actions import newly_found, notice_of
from clary.control.jobs.training_job import TrainingJob

DEADLINE_S = 5.0  # limit of one try
TRIES = 2
PAUSE_S = 1.0  # pause between the tries
MAX_WAITING = 100

logger = logging.getLogger(__name__)


class RuleNotices:
    """Collects findings and posts them, one after the other.

    Args:
        url: address to which notices are posted; if empty, no notices are sent.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._waiting: deque[dict[str, Any]] = deque()
        self._has_some = asyncio.Event()

    def on_change(self, before: TrainingJob | None, after: TrainingJob) -> None:
        """Queue new findings of a job's rules, without waiting; findings of a job just loaded count as sent."""
        if not self._url or before is None or before.rule_evaluations is after.rule_evaluations:
            return
        for item in newly_found(before, after):
            if len(self._waiting) >= MAX_WAITING:
                logger.warning("no notice of rule %s of %s is sent: too many notices wait", item.name, after.name)
                continue
            self._waiting.append(notice_of(after, item))
            self._has_some.set()

    async def send_all(self) -> None:
        """Post queued notices until cancelled."""
        if not self._url:
            return
        timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                while self._waiting:  # before the first wait, too: an error may have ended an earlier call
                    await self._send(session, self._waiting.popleft())
                self._has_some.clear()
                await self._has_some.wait()

    async def _send(self, session: aiohttp.ClientSession, notice: dict[str, Any]) -> None:
        what = f"rule {notice['rule_configuration_name']} of {notice['training_job_name']}"
        for left in reversed(range(TRIES)):
            try:
                async with session.post(self._url, json=notice, allow_redirects=False) as answer:
                    if answer.ok:
                        return
                    problem = f"status {answer.status}"
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
            if left:
                await asyncio.sleep(PAUSE_S)
        # The address may contain a secret: the message hides it.
        logger.warning("%s was not taken by rule_webhook_url: %s", what, problem.replace(self._url, "(hidden)"))
