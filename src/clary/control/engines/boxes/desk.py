"""Serves boxes and their owner: adding, joining, orders, draining, removing.

Where: `server.box_routes` calls it, `server.authorization` checks tokens with it. Only digests of tokens are stored, so
that a reader of the state folder cannot impersonate a box.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from clary.base.clock import Clock
from clary.base.errors import WireError
from clary.contract.box_protocol import (
    BOX_NAME,
    DIGEST,
    MAX_GPUS,
    MAX_WORDS,
    POLL_WAIT_S,
    BoxAdmission,
    BoxFacts,
    BoxOrders,
    BoxReport,
    LeasePhase,
)
from clary.control.engines.boxes.lease_book import LeaseBook
from clary.control.engines.boxes.placement import BoxState
from clary.control.engines.boxes.records import BoxRecord, JoinTokenRecord
from clary.control.engines.cluster.scheduler import Boot

MAX_BOXES = 1000
MAX_JOIN_TOKENS = 100
MAX_REPORTED_LEASES = 64
MAX_JOIN_S = 7 * 86_400.0
_TOKEN_BYTES = 32
_MACHINE = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class NewBox:
    """A box that asks to be added, with its own description."""

    name: str
    machine: str  # SHA-256 that identifies the machine and its user
    facts: BoxFacts


class BoxDesk:
    """Operations that boxes and their owner request from the service.

    Args:
        book: the leases.
        clock: clock for the expiry of tokens.
    """

    def __init__(self, book: LeaseBook, clock: Clock) -> None:
        self._book = book
        self._clock = clock
        self._boot: Boot | None = None
        self._is_closing = False

    def open(self, boot: Boot) -> None:
        """Begin to answer requests."""
        self._boot = boot

    def close(self) -> None:
        """Answer all waiting requests; answer later requests at once."""
        self._is_closing = True
        for name in list(self._book.ledger.boxes):
            self._book.presence.change(name)

    @property
    def boot(self) -> Boot:
        """The boot that boxes start. Raises: WireError 503 before the engine has started."""
        if self._boot is None:
            raise WireError("ServiceUnavailable", "the engine of boxes has not started yet", http_status=503)
        return self._boot

    @property
    def boot_digest(self) -> str:
        """SHA-256 of the boot's source."""
        return _digest(self.boot.script)

    # Boxes

    def authorize(self, name: str, token: str) -> None:
        """Check the token of a box.

        Raises: WireError 503 before the engine has started, 410 for an unknown box, 403 for a wrong token.
        """
        self.boot  # noqa: B018 - raises 503 before the start: an unknown box is not a removed one then
        box = self._book.ledger.boxes.get(name)
        if box is None:
            raise WireError("BoxUnknown", f"there is no box {name[:64]!r}: it was removed", http_status=410)
        if not hmac.compare_digest(_digest(token), box.token_digest):
            raise WireError("AccessDenied", f"the token does not open box {name}", http_status=403)

    async def orders(self, name: str, report: BoxReport, remote: str) -> BoxOrders:
        """Process a box's report; return the box's orders once they have changed, or after the wait.

        The wait is as long as the report requests, at most POLL_WAIT_S; without a wait if the orders differ already.

        Args:
            name: name of the box, which was authorized.
            report: report of the box's daemon.
            remote: address from which the report was sent.
        Raises: WireError 400 for an impossible report, 410 for a removed box.
        """
        _check_report(report)
        presence = self._book.presence
        if presence.hear(name, report, remote):
            await self._book.change(lambda: self._take(name, report))
        if name not in self._book.ledger.boxes:
            raise WireError("BoxUnknown", f"box {name} was removed", http_status=410)
        if report.after == presence.version(name) and not self._is_closing:
            await presence.wait_for(name, report.after, min(report.wait_s, POLL_WAIT_S))
        version = presence.version(name)  # read before the orders: a change in between leads to one more answer
        return BoxOrders(version=version, leases=self._book.orders_of(name, self.boot_digest))

    async def _take(self, name: str, report: BoxReport) -> None:
        """Store a report; delete a removed box's record once neither report nor book has a living lease of it."""
        ledger = self._book.ledger
        box = ledger.boxes.get(name)
        if box is None:
            return
        known = replace(
            box, facts=_with_known_gpus(report.facts, box.facts), daemon=report.daemon, boot_id=report.boot_id
        )
        if known != box:
            await ledger.put_box(known)
        await self._book.take_report(name, report)
        runs = [lease for lease in report.leases if lease.phase is not LeasePhase.GONE]
        if box.is_removed and not runs and not self._book.leases_of(name):
            await ledger.remove_box(name)
            self._book.presence.forget(name)
            return
        await self._book.place_waiting()  # the box may have been silent until now

    def boot_source(self, digest: str) -> bytes:
        """Return the source of the boot. Raises: WireError 404 for another digest."""
        if digest != self.boot_digest:
            raise WireError("NotFound", f"this service starts hosts with boot {self.boot_digest}", http_status=404)
        return self.boot.script.encode()

    # Joining

    async def join_token(self, valid_s: float) -> dict[str, Any]:
        """Make a token with which one machine can join. Raises: WireError 400, 429.

        Args:
            valid_s: seconds until it expires.
        """
        if not 0 < valid_s <= MAX_JOIN_S:
            raise WireError("ValidationException", f"valid_s: expected 0 to {MAX_JOIN_S:g} s, got {valid_s!r}")
        token = secrets.token_hex(_TOKEN_BYTES)
        expires_at = self._clock.now() + timedelta(seconds=valid_s)
        record = JoinTokenRecord(token_digest=_digest(token), expires_at=expires_at)
        await self._book.change(lambda: self._keep(record))
        return {"token": token, "expires_at": expires_at.isoformat(), "service_url": self.boot.service_url}

    async def _keep(self, record: JoinTokenRecord) -> None:
        ledger = self._book.ledger
        for old in list(ledger.join_tokens.values()):
            if old.expires_at <= self._clock.now():
                await ledger.remove_join_token(old.token_digest)
        if len(ledger.join_tokens) >= MAX_JOIN_TOKENS:
            told = f"{MAX_JOIN_TOKENS} tokens for joining are open: wait until one expires"
            raise WireError("TooManyRequests", told, http_status=429)
        await ledger.put_join_token(record)

    def authorize_joining(self, token: str) -> None:
        """Check a token for joining. Raises: WireError 403."""
        record = self._book.ledger.join_tokens.get(_digest(token))  # by digest, so that no token is compared
        if record is None or record.expires_at <= self._clock.now():
            raise WireError(
                "AccessDenied",
                "the token does not let a box join: it was used, or has expired; make one with: clary hosts token",
                http_status=403,
            )

    async def join(self, token: str, new: NewBox) -> BoxAdmission:
        """Add a box by its token for joining, which becomes invalid.

        Args:
            token: token for joining, which was authorized.
            new: the box.
        Raises: WireError 400, 403, 409.
        """

        async def work() -> BoxAdmission:
            self.authorize_joining(token)  # another box may have used the token meanwhile
            admission = await self._add(new)
            await self._book.ledger.remove_join_token(_digest(token))
            return admission

        return await self._book.change(work)

    # The owner

    async def add(self, new: NewBox) -> BoxAdmission:
        """Add a box, or give a known box a new token and keep its leases. Raises: WireError 400, 409."""
        return await self._book.change(lambda: self._add(new))

    async def _add(self, new: NewBox) -> BoxAdmission:
        _check_new(new)
        ledger = self._book.ledger
        old = ledger.boxes.get(new.name)
        if old is not None and old.machine != new.machine:
            raise _conflict(
                f"{new.name} is another machine (host {old.facts.hostname}, user {old.facts.user}): give this one "
                f"another name with --name, or remove that one with: clary hosts remove {new.name}"
            )
        if old is not None and old.is_removed:
            raise _conflict(
                f"{new.name} is being removed; wait for it, or forget it with: clary hosts remove --force {new.name}"
            )
        twin = next((box for box in ledger.boxes.values() if box.machine == new.machine and box is not old), None)
        if twin is not None:
            raise _conflict(f"this machine is box {twin.name} already; add it under that name")
        if old is None and len(ledger.boxes) >= MAX_BOXES:
            raise _conflict(
                f"there are {MAX_BOXES} boxes already, which is the maximum; for more machines, use a Slurm cluster"
            )
        token = secrets.token_hex(_TOKEN_BYTES)
        if old is None:
            now = self._clock.now()
            box = BoxRecord(
                name=new.name, machine=new.machine, token_digest=_digest(token), facts=new.facts, added_at=now
            )
        else:
            facts = _with_known_gpus(new.facts, old.facts)
            box = replace(old, token_digest=_digest(token), facts=facts)
        await ledger.put_box(box)
        if old is None:
            self._book.presence.introduce(new.name)
        else:  # the old daemon's token is invalid now: the next report comes from the new daemon
            self._book.presence.expect(new.name)
        return BoxAdmission(name=new.name, token=token, service_url=self.boot.service_url, ca_pem=self.boot.ca_pem)

    async def drain(self, name: str) -> None:
        """Give a box no new lease, and send its agents a notice. Raises: WireError 404."""

        async def work() -> None:
            await self._book.ledger.put_box(replace(self._box(name), is_drained=True))
            await self._book.notice(name)

        await self._book.change(work)

    async def resume(self, name: str) -> None:
        """Allow new leases on a drained box again. Raises: WireError 404."""

        async def work() -> None:
            await self._book.ledger.put_box(replace(self._box(name), is_drained=False))
            await self._book.place_waiting()

        await self._book.change(work)

    async def remove(self, name: str, *, is_forced: bool) -> None:
        """End all leases of a box, and delete its record once their end is certain. Raises: WireError 404.

        Args:
            name: name of the box.
            is_forced: whether to delete the record now, even if processes may still run on the box.
        """

        async def work() -> None:
            box = self._box(name)
            if is_forced:
                await self._book.give_up_leases_of(name, f"{name} was removed by its owner, and could not be asked")
                await self._book.ledger.remove_box(name)
                self._book.presence.forget(name)
                return
            await self._book.ledger.put_box(replace(box, is_removed=True, is_drained=True))
            await self._book.end_leases_of(name, f"{name} was removed by its owner")

        await self._book.change(work)

    def _box(self, name: str) -> BoxRecord:
        box = self._book.ledger.boxes.get(name)
        if box is None:
            raise WireError("NotFound", f"there is no box {name[:64]!r}; see: clary hosts", http_status=404)
        return box

    def page(self) -> dict[str, Any]:
        """Return the page on boxes for the owner."""
        boxes = sorted(self._book.ledger.boxes.values(), key=lambda box: box.name)
        return {
            "service_url": self.boot.service_url,
            "ca_pem": self.boot.ca_pem,
            "boxes": [self._row(box) for box in boxes],
            "waiting": self._book.waits(),
        }

    def _row(self, box: BoxRecord) -> Mapping[str, Any]:
        facts, presence = box.facts, self._book.presence
        view = self._book.view(box)
        state = view.state
        return {
            "name": box.name,
            "state": state.value,
            "why": self._why(box, state),
            "is_drained": box.is_drained,
            "kind": view.kind,
            "hostname": facts.hostname,
            "user": facts.user,
            "num_cpus": facts.num_cpus,
            "memory_bytes": facts.memory_bytes,
            "gpus": None if facts.gpus is None else list(facts.gpus),
            "isolation": facts.isolation,
            "python_version": facts.python_version,
            "restarts": facts.restarts,
            "daemon": box.daemon,
            "was_heard": presence.was_heard(box.name),
            "silent_s": round(presence.silent_s(box.name), 1),
            "address": presence.remote(box.name),
            "runs": [
                {
                    "job": allocation.job_name,
                    "tag": allocation.tag,
                    "host": f"algo-{lease.index + 1}",
                    "phase": lease.phase.value,
                    "is_ending": lease.is_ending,
                }
                for allocation, lease in self._book.leases_of(box.name)
            ],
        }

    def _why(self, box: BoxRecord, state: BoxState) -> str:
        silent_s = self._book.presence.silent_s(box.name)
        is_silent = self._book.presence.is_silent(box.name)
        match state:
            case BoxState.SILENT if not is_silent:
                if self._book.presence.remote(box.name):  # heard before `hosts add` replaced its daemon
                    return "its daemon was replaced, and has not asked yet"
                return "not heard of since the service started" if box.daemon else "its daemon has never asked yet"
            case BoxState.SILENT:
                return f"not heard of for {silent_s:.0f} s; look at it, or repair it with: clary hosts add"
            case BoxState.GONE if is_silent:
                return (
                    f"not heard of for {silent_s:.0f} s; it goes when it answers, or with: clary hosts remove --force"
                )
            case BoxState.GONE:
                return "ends what it runs"
            case BoxState.UNKNOWN:
                return "its driver has not reported its GPUs yet; see node.log below ~/.clary-node there"
        return ""


def require_desk(boxes: BoxDesk | None, engine: str) -> BoxDesk:
    """Return the desk for boxes. Raises: WireError 409 naming the service's engine if it is another."""
    if boxes is None:
        raise _conflict(f"this service gets its hosts from {engine}; start it with: clary up --engine boxes")
    return boxes


def _with_known_gpus(facts: BoxFacts, old: BoxFacts) -> BoxFacts:
    """Return a box's facts; if its driver has not answered yet, with the GPUs that it told before."""
    return replace(facts, gpus=old.gpus) if facts.gpus is None else facts


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _conflict(words: str) -> WireError:
    return WireError("Conflict", words, http_status=409)


def _check_new(new: NewBox) -> None:
    if not BOX_NAME.fullmatch(new.name):
        told = f"name: expected up to 63 letters, digits, - and ., got {new.name[:80]!r}"
        raise WireError("ValidationException", told)
    if not _MACHINE.fullmatch(new.machine):
        raise WireError("ValidationException", "machine: expected 64 hex digits")
    _check_facts(new.facts)


def _check_report(report: BoxReport) -> None:
    _check_facts(report.facts)
    _check_texts("report", (report.run, report.boot_id))
    if report.daemon and not DIGEST.fullmatch(report.daemon):
        raise WireError("ValidationException", "daemon: expected 64 hex digits")
    if len(report.leases) > MAX_REPORTED_LEASES:
        told = f"leases: expected {MAX_REPORTED_LEASES} at most, got {len(report.leases)}"
        raise WireError("ValidationException", told)
    for lease in report.leases:
        _check_texts("leases", (lease.lease, lease.why, lease.started))
        if lease.proof_digest and not DIGEST.fullmatch(lease.proof_digest):
            raise WireError("ValidationException", "proof_digest: expected 64 hex digits")
    if not 0 <= report.wait_s < float("inf"):
        raise WireError("ValidationException", f"wait_s: expected a number of seconds, got {report.wait_s!r}")


def _check_facts(facts: BoxFacts) -> None:
    texts = (facts.hostname, facts.user, facts.isolation, facts.python_version, facts.restarts)
    gpus = facts.gpus or ()
    _check_texts("facts", (*texts, *gpus))
    if not 0 < facts.num_cpus <= 1 << 16 or not 0 < facts.memory_bytes <= 1 << 50 or len(gpus) > MAX_GPUS:
        raise WireError(
            "ValidationException", "facts: expected CPUs, memory and GPUs in amounts that a machine can have"
        )


def _check_texts(what: str, texts: Sequence[str]) -> None:
    for text in texts:
        if len(text) > MAX_WORDS or not text.isprintable():
            told = f"{what}: expected texts of at most {MAX_WORDS} printable characters, got {text[:80]!r}"
            raise WireError("ValidationException", told)
