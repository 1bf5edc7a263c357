"""Enrols boots: checks their proof, gives each number to one boot, and admits the hosts of a gang together.

Where: `server.allocation_routes` passes requests of boots to it; `cluster_engine` waits until a gang (all hosts of an
allocation) has enrolled, and admits it. Enrolments are stored in `<home>/allocations/TAG.json`, so that the next
service knows which boot has which number.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clary.base.clock import Clock
from clary.base.errors import ContractError, EngineError, WireError
from clary.base.plain import from_plain, to_plain
from clary.base.whole_files import replace_durably
from clary.contract.enrolment import MAX_LIST, Admission, Enrolment, NodeReport, Standby

MAX_WAIT_S = 25.0
_CLAIM = re.compile(r"[0-9a-f]{32}")
_TAG = re.compile(r"pool_[0-9a-f]{12}")
_GIVEN_UP = "given_up"  # key next to the numbers in a record

_log = logging.getLogger(__name__)


def host_token(pool_token: str, claim_digest: str) -> str:
    """Return the token with which one boot's agent requests its pool's attempts; it is valid as long as the claim.

    Args:
        pool_token: token of the pool, from which its hosts' tokens are derived.
        claim_digest: digest of the claim of the boot that has the host's number.
    """
    return hmac.new(pool_token.encode(), claim_digest.encode(), hashlib.sha256).hexdigest()


WhyNotProved = Callable[[str, int, str], str]


@dataclass(frozen=True, kw_only=True)
class Enrolled:
    """One number that was assigned to a boot."""

    claim_digest: str  # SHA-256 of the boot's claim
    report: NodeReport


@dataclass
class _Gang:
    num_hosts: int
    enrolled: dict[int, Enrolled]
    admissions: dict[int, Admission] = field(default_factory=dict)
    enrolled_at_s: dict[int, float] = field(default_factory=dict)  # monotonic; missing if an earlier service enrolled
    change: asyncio.Event = field(default_factory=asyncio.Event)
    given_up: set[str] = field(default_factory=set)  # digests of claims whose hosts were lost
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)  # orders writes, so that the newest state is on disk


class Enrolments:
    """The boots of all allocations.

    Args:
        folder: folder of the enrolments; made if it is missing.
        why_not_proved: returns why a boot's proof is not accepted, empty if it is; may block.
        clock: clock for waits.
        bundle_digest: digest of the agent's bundle.
    """

    def __init__(self, folder: Path, why_not_proved: WhyNotProved, clock: Clock, *, bundle_digest: str) -> None:
        self._folder = folder
        self._why_not_proved = why_not_proved
        self._clock = clock
        self._bundle_digest = bundle_digest
        self._gangs: dict[str, _Gang] = {}

    def expect(self, tag: str, num_hosts: int) -> None:
        """Allow boots of an allocation to enrol, if not yet allowed. Raises: EngineError for a damaged record."""
        if tag not in self._gangs:
            enrolled, given_up = self._read(tag)
            self._gangs[tag] = _Gang(num_hosts, enrolled, given_up=given_up)

    def age_s(self, tag: str, index: int) -> float:
        """Return the seconds since a number was assigned; infinity if an earlier service assigned it."""
        gang = self._gangs.get(tag)
        since_s = None if gang is None else gang.enrolled_at_s.get(index)
        return float("inf") if since_s is None else self._clock.monotonic() - since_s

    async def release(self, tag: str, index: int) -> None:
        """Free the number of a lost host: another boot may claim it, but never again its previous boot.

        A node that was unreachable may reconnect, and its boot may claim its old number.

        Raises: EngineError if the release could not be stored; the release then lasts until the service restarts.
        """
        gang = self._gangs.get(tag)
        if gang is None:
            return
        async with gang.writing:
            holder = gang.enrolled.pop(index, None)
            gang.admissions.pop(index, None)
            gang.enrolled_at_s.pop(index, None)
            if holder is not None:
                gang.given_up.add(holder.claim_digest)
                self._tell(gang)
                try:
                    await self._keep(tag, gang, gang.enrolled)
                except OSError as error:
                    raise EngineError(
                        f"{self._path(tag)}: {error.strerror}; free space there", retryable=True
                    ) from error

    def forget(self, tag: str) -> None:
        """Refuse further boots of an allocation; waiting boots are refused, too.

        A record that cannot be removed stays, so that the allocation's hosts are ended all the same; `known` names it,
        and the service, which owns no such allocation, ends it again later.
        """
        gang = self._gangs.pop(tag, None)
        if gang is not None:
            gang.change.set()
        try:
            self._path(tag).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s: the record of an ended allocation stays for now: %s", self._path(tag), error.strerror)

    def known(self) -> list[str]:
        """Return the tags that have a record on disk. Raises: EngineError if their folder cannot be read."""
        try:
            paths = list(self._folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise EngineError(f"{self._folder}: enrolments cannot be listed: {error}", retryable=True) from error
        return [path.stem for path in paths if _TAG.fullmatch(path.stem) and path.suffix == ".json"]

    def reports(self, tag: str) -> Mapping[int, NodeReport]:
        """Return number -> report of the node, for the enrolled hosts of an allocation."""
        gang = self._gangs.get(tag)
        return {} if gang is None else {index: one.report for index, one in gang.enrolled.items()}

    def claim_of(self, tag: str, index: int) -> str:
        """Return the digest of the claim to which a number is assigned; empty if the number is free."""
        gang = self._gangs.get(tag)
        holder = None if gang is None else gang.enrolled.get(index)
        return "" if holder is None else holder.claim_digest

    def given_up(self, tag: str) -> frozenset[str]:
        """Return the digests of claims of an allocation that were given up."""
        gang = self._gangs.get(tag)
        return frozenset() if gang is None else frozenset(gang.given_up)

    async def wait(self, tag: str, wait_s: float) -> bool:
        """Return whether all numbers of an allocation are assigned; if they are not, first wait for one change.

        The wait lasts `wait_s` seconds at most.

        Raises: EngineError for an allocation that has ended.
        """
        gang = self._gangs.get(tag)
        if gang is None:
            raise EngineError(f"{tag} has ended")
        if len(gang.enrolled) < gang.num_hosts:
            await self._wait_for_change(gang, wait_s)
        return len(gang.enrolled) >= gang.num_hosts

    def admit(self, tag: str, admissions: Mapping[int, Admission]) -> None:
        """Let the boots of an allocation become agents."""
        gang = self._gangs[tag]
        gang.admissions.update(admissions)
        self._tell(gang)

    async def enrol(self, tag: str, index: int, asked: Enrolment) -> Admission | Standby:
        """Answer one request of a boot; wait for its gang as long as the request allows.

        Args:
            tag: tag that the boot names.
            index: index that the boot names.
            asked: the request.
        Raises: WireError 410 with the reason for a boot that no pool needs, 503 if the enrolment could not be stored.
        """
        gang = self._gangs.get(tag)
        if gang is None or not 0 <= index < gang.num_hosts:
            raise _unwanted(f"no job waits for host {index} of {tag}")
        if why := _why_malformed(asked) or await asyncio.to_thread(self._why_not_proved, tag, index, asked.proof):
            raise _unwanted(why)
        digest = hashlib.sha256(asked.claim.encode()).hexdigest()
        await self._take(tag, gang, index, Enrolled(claim_digest=digest, report=asked.report))
        deadline_s = self._clock.monotonic() + min(MAX_WAIT_S, max(0.0, asked.wait_s))
        while True:
            # Read after each wait: by then the number and its admission may belong to another boot.
            holder = gang.enrolled.get(index)
            if self._gangs.get(tag) is not gang:
                raise _unwanted(f"{tag} has ended")
            if holder is None or holder.claim_digest != digest:
                raise _unwanted(f"host {index} of {tag} was given up, and will be assigned to another boot")
            if index in gang.admissions:
                return gang.admissions[index]
            left_s = deadline_s - self._clock.monotonic()
            if left_s <= 0:
                return Standby(bundle=self._bundle_digest)
            await self._wait_for_change(gang, left_s)

    async def _take(self, tag: str, gang: _Gang, index: int, own: Enrolled) -> None:
        """Assign a number to a boot if it does not have it yet; the assignment is valid once it is on disk."""
        async with gang.writing:
            holder = gang.enrolled.get(index)
            if own.claim_digest in gang.given_up:
                raise _unwanted(f"this boot's host {index} of {tag} was given up")
            if holder is not None and holder.claim_digest != own.claim_digest:
                raise _unwanted(f"host {index} of {tag} was enrolled by another boot, on {holder.report.node}")
            if self._gangs.get(tag) is not gang:
                raise _unwanted(f"{tag} has ended")
            if holder is not None:
                return
            try:
                await self._keep(tag, gang, {**gang.enrolled, index: own})
            except OSError as error:
                raise WireError(
                    "ServiceUnavailable", f"the enrolment could not be stored: {error.strerror}", http_status=503
                ) from error
            gang.enrolled[index] = own
            gang.enrolled_at_s[index] = self._clock.monotonic()
            self._tell(gang)

    async def _wait_for_change(self, gang: _Gang, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await gang.change.wait()
        except TimeoutError:
            return

    def _tell(self, gang: _Gang) -> None:
        change, gang.change = gang.change, asyncio.Event()
        change.set()

    def _path(self, tag: str) -> Path:
        if not _TAG.fullmatch(tag):
            raise EngineError(f"{tag!r} is not the tag of an allocation")
        return self._folder / f"{tag}.json"

    def _read(self, tag: str) -> tuple[dict[int, Enrolled], set[str]]:
        path = self._path(tag)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            given_up = {str(digest) for digest in document.pop(_GIVEN_UP, ())}
            return {int(index): from_plain(Enrolled, plain) for index, plain in document.items()}, given_up
        except FileNotFoundError:
            return {}, set()
        except (OSError, ValueError, AttributeError, TypeError, ContractError) as error:
            raise EngineError(f"{path}: enrolments cannot be read: {error}") from error

    async def _keep(self, tag: str, gang: _Gang, enrolled: Mapping[int, Enrolled]) -> None:
        document: dict[str, object] = {str(index): to_plain(one) for index, one in sorted(enrolled.items())}
        if gang.given_up:
            document[_GIVEN_UP] = sorted(gang.given_up)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        await asyncio.to_thread(replace_durably, self._path(tag), json.dumps(document).encode())
        if self._gangs.get(tag) is not gang:
            self._path(tag).unlink(missing_ok=True)  # `forget` was called for the allocation meanwhile


def _why_malformed(asked: Enrolment) -> str:
    report = asked.report
    if not _CLAIM.fullmatch(asked.claim):
        return "a claim has 32 hex digits"
    if max(len(report.addresses), len(report.gpus)) > MAX_LIST:
        return f"a report names at most {MAX_LIST} addresses and GPUs"
    return ""


def _unwanted(why: str) -> WireError:
    return WireError("AllocationOver", why, http_status=410)
