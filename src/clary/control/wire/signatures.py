"""Verification of SigV4 signatures: authenticates the sender of each request.

Where: after routing, before the body is parsed. A request passes only if its signature was made recently, or its
presigned URL has not expired, with a key that the service knows, over exactly this method, path, query, body and
`_MEANINGFUL_HEADERS`. A request that changes something passes only once.
Source: AWS General Reference, "Signature Version 4 signing process"; texts as the real services write them.

[Note: replays] Two equal requests signed in the same second have the same signature: the SDKs send a unique
`amz-sdk-invocation-id`, but do not sign it, so that it proves nothing. The second request is refused with
ThrottlingException, which makes every retry mode of the SDKs sign the request again. The refusal also has the header
`x-amz-retry-after`, which makes standard mode wait until the next second. The signature then differs, so that the
request passes.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum

from clary.base.clock import Clock
from clary.base.errors import ContractError, WireError
from clary.contract import sigv4
from clary.control.permissions.temporary_keys import TemporaryKeys, TokenVerdict
from clary.control.wire.messages import HttpRequest
from clary.control.wire.models import Operation, Protocol
from clary.control.wire.replay_journal import ReplayJournal
from clary.control.wire.replays import ReplayGuard
from clary.control.wire.serializing import RETRY_AFTER_MS

# Operations that only read; every other operation counts as a change.
_READING = re.compile(r"(?:Batch)?(?:Describe|List|Get|Filter|Search|Simulate)(?=[A-Z]|$)")
# Headers that determine the meaning of a request: unsigned, they could be changed in transit. Not the content type,
# which the SDKs for JavaScript (v2) and PHP leave unsigned: `routing` says why that changes no request's meaning.
_MEANINGFUL_HEADERS = ("host", "x-amz-target", "x-amz-date", "x-amz-content-sha256", "content-encoding")
_FORBIDDEN_STATUS = 403
INVALID_TOKEN = "The security token included in the request is invalid."  # noqa: S105 - AWS's words
EXPIRED_TOKEN = "The security token included in the request is expired"  # noqa: S105 - AWS's words
REPLAY_RETRY_AFTER_MS = 1000  # the time in a signature has whole seconds


class Refusal(StrEnum):
    """Why a request is refused; values are the codes of the JSON protocols."""

    MISSING = "MissingAuthenticationTokenException"
    MALFORMED = "IncompleteSignatureException"
    UNKNOWN_KEY = "UnrecognizedClientException"
    EXPIRED = "ExpiredTokenException"
    WRONG = "InvalidSignatureException"
    REPLAYED = "ThrottlingException"


_QUERY_CODES = {
    Refusal.MISSING: "MissingAuthenticationToken",
    Refusal.MALFORMED: "IncompleteSignature",
    Refusal.UNKNOWN_KEY: "InvalidClientTokenId",
    Refusal.EXPIRED: "ExpiredToken",
    Refusal.WRONG: "SignatureDoesNotMatch",
    Refusal.REPLAYED: "Throttling",
}
_STATUS = {Refusal.MALFORMED: 400, Refusal.REPLAYED: 400}


class SignatureVerifier:
    """Verifies signatures for any region.

    Args:
        find_secret: access key id -> secret access key; None for an unknown key.
        clock: its time of day is compared with signatures; its monotonic time decides when they are forgotten.
        skew_s: largest difference in seconds between a signature's time and the service's clock.
        journal: keeps used signatures over restarts; without it, they are forgotten at a restart.
        temporary: the keys that require a session token; None if there are no such keys.
    """

    def __init__(
        self,
        find_secret: Callable[[str], str | None],
        clock: Clock,
        *,
        skew_s: float,
        journal: ReplayJournal | None = None,
        temporary: TemporaryKeys | None = None,
    ) -> None:
        self._temporary = temporary
        self._find_secret = find_secret
        self._clock = clock
        self._skew_s = skew_s
        self._replays = ReplayGuard(skew_s=skew_s, journal=journal, now_s=clock.monotonic())

    def verify(
        self, request: HttpRequest, payload: bytes | str | None = None, *, operation: Operation | None = None
    ) -> sigv4.Authorization:
        """Verify the request's signature and return its Authorization.

        Args:
            payload: body, or its hexadecimal SHA-256 if already computed; None takes the request's body.
            operation: from routing; names the expected service, the spelling of error codes and whether something
                changes. None accepts any service and does not check for replays.
        Raises: WireError with an error code of the operation's protocol and AWS's text.
        """
        check = _Check(operation.protocol if operation is not None else Protocol.JSON_1_1)
        body = request.body if payload is None else payload
        body_hash = body if isinstance(body, str) else hashlib.sha256(body).hexdigest()
        head = self._read_head(request, check)
        check.scope(head.authorization, head.amz_date, operation)
        secret = self._check_head(head, request, check)
        check.payload(request, body_hash)
        authorization = head.authorization
        if not _is_signed_by(secret, head, request, body_hash=body_hash):
            raise check.wrong()
        # Only verified signatures are remembered, so that strangers cannot fill the memory.
        is_guarded = operation is not None and is_changing(operation.name)
        if is_guarded and not self._replays.is_new(
            authorization.signature, signed_at=head.signed_at, clock=self._clock
        ):
            replayed = check.refused(
                Refusal.REPLAYED,
                "Rate exceeded: this signature was used before. Sign the request again with the present time; "
                "AWS clients do so when they retry.",
            )
            replayed.details[RETRY_AFTER_MS] = REPLAY_RETRY_AFTER_MS
            raise replayed
        return authorization

    def give_back(self, request: HttpRequest) -> None:
        """Forget the signature of a verified request that changed nothing, so that its client may send it again."""
        head = self._read_head(request, _Check(Protocol.JSON_1_1))
        self._replays.give_back(head.authorization.signature, signed_at=head.signed_at)

    def holder_of(self, request: HttpRequest) -> str:
        """Return ROLE/SESSION of the temporary key that signed a verified request; empty for any other key."""
        head = self._read_head(request, _Check(Protocol.JSON_1_1))
        if self._temporary is None or not head.session_token:
            return ""
        key = head.authorization.access_key_id
        return self._temporary.judge(key, head.session_token, now=self._clock.now()).holder

    def judge_head(self, request: HttpRequest, *, protocol: Protocol = Protocol.JSON_1_1) -> sigv4.Authorization:
        """Check a request's headers before its body is read, and return its Authorization.

        With x-amz-content-sha256, the signature is verified: it covers the body's hash, which `verify` later compares
        with the body. Without this header, which most clients do not send, only the key, the time and the list of
        signed headers are checked. A request that passes must still be verified with its body.

        Raises: WireError for headers with which no body could pass.
        """
        check = _Check(protocol)
        head = self._read_head(request, check)
        check.scope(head.authorization, head.amz_date, None)
        secret = self._check_head(head, request, check)
        claimed = request.header("x-amz-content-sha256")
        if claimed is not None and not _is_signed_by(secret, head, request, body_hash=claimed):
            raise check.wrong()
        return head.authorization

    def _read_head(self, request: HttpRequest, check: _Check) -> _Head:
        try:
            header = request.header("authorization")
            if header is not None:
                amz_date = _date_of(request)
                return _Head(
                    authorization=sigv4.parse_authorization(header),
                    query=request.query,
                    amz_date=amz_date,
                    signed_at=sigv4.parse_date(amz_date),
                    session_token=request.header(sigv4.SECURITY_TOKEN) or "",
                )
            presigned = sigv4.parse_presigned(request.query)
            if presigned is None:
                raise check.refused(Refusal.MISSING, "Missing Authentication Token: sign the request with SigV4.")
            return _Head(
                authorization=presigned.authorization,
                query=presigned.unsigned_query,
                amz_date=presigned.amz_date,
                signed_at=sigv4.parse_date(presigned.amz_date),
                session_token=presigned.session_token,
                expires_s=presigned.expires_s,
            )
        except ContractError as error:
            raise check.refused(Refusal.MALFORMED, error.message) from error

    def _check_head(self, head: _Head, request: HttpRequest, check: _Check) -> str:
        """Return the secret of the head's key, after checking everything except the signature."""
        check.signed_headers(head.authorization, request)
        expires_s = self._skew_s if head.expires_s is None else head.expires_s
        check.time(head.signed_at, self._clock.now(), skew_s=self._skew_s, expires_s=expires_s)
        access_key_id = head.authorization.access_key_id
        if head.session_token:
            verdict = TokenVerdict()
            if self._temporary is not None:
                verdict = self._temporary.judge(access_key_id, head.session_token, now=self._clock.now())
            if verdict.has_expired:
                raise check.refused(Refusal.EXPIRED, EXPIRED_TOKEN)
            if not verdict.secret:
                raise check.refused(Refusal.UNKNOWN_KEY, f"{INVALID_TOKEN} {sigv4.TOKEN_HINT}")
            return verdict.secret
        secret = self._find_secret(access_key_id)
        if secret is None:
            raise check.refused(Refusal.UNKNOWN_KEY, INVALID_TOKEN)
        return secret


@dataclass(frozen=True, kw_only=True)
class _Head:
    """The parts of a signature, from the headers or the query."""

    authorization: sigv4.Authorization
    query: str  # the query that the signature covers
    amz_date: str
    signed_at: datetime
    session_token: str
    expires_s: float | None = None  # lifetime of a presigned URL


def is_changing(operation_name: str) -> bool:
    """Return whether an operation changes something; the verb in its name decides."""
    return _READING.match(operation_name) is None


class _Check:
    """The individual checks, with the error codes of one protocol."""

    def __init__(self, protocol: Protocol) -> None:
        self._is_query = protocol is Protocol.QUERY

    def refused(self, refusal: Refusal, message: str) -> WireError:
        """Return the error for a refusal."""
        code = _QUERY_CODES[refusal] if self._is_query else refusal.value
        return WireError(code, message, http_status=_STATUS.get(refusal, _FORBIDDEN_STATUS))

    def wrong(self) -> WireError:
        """Return the error for a signature that was made with another key, or over a different request."""
        return self.refused(
            Refusal.WRONG,
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
            "Access Key and signing method. Consult the service documentation for details.",
        )

    def scope(self, authorization: sigv4.Authorization, amz_date: str, operation: Operation | None) -> None:
        """Refuse a credential scope for another day or service."""
        if authorization.date != amz_date[:8]:
            raise self.refused(
                Refusal.WRONG,
                "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
                f"'{authorization.date}' != '{amz_date[:8]}', from '{amz_date}'.",
            )
        if operation is not None and authorization.service != operation.service.signing_name:
            raise self.refused(
                Refusal.WRONG,
                f"Credential should be scoped to correct service: '{operation.service.signing_name}'.",
            )

    def signed_headers(self, authorization: sigv4.Authorization, request: HttpRequest) -> None:
        """Refuse a signature that does not cover each header of `_MEANINGFUL_HEADERS`."""
        present = request.lowered_headers
        for name in _MEANINGFUL_HEADERS:
            if name in authorization.signed_headers:
                continue
            if name == "host" or name in present:
                raise self.refused(
                    Refusal.WRONG, f"'{name}' must be a 'SignedHeader' in the AWS Authorization: sign it too."
                )

    def time(self, signed_at: datetime, now: datetime, *, skew_s: float, expires_s: float) -> None:
        """Refuse a signature from too long ago or from the future."""
        if signed_at < now - timedelta(seconds=expires_s):
            limit = _stamp(now - timedelta(seconds=expires_s))
            raise self.refused(
                Refusal.WRONG,
                f"Signature expired: {_stamp(signed_at)} is now earlier than {limit} "
                f"({_stamp(now)} - {_duration(expires_s)})",
            )
        if signed_at > now + timedelta(seconds=skew_s):
            limit = _stamp(now + timedelta(seconds=skew_s))
            raise self.refused(
                Refusal.WRONG,
                f"Signature not yet current: {_stamp(signed_at)} is still later than {limit} "
                f"({_stamp(now)} + {_duration(skew_s)})",
            )

    def payload(self, request: HttpRequest, body_hash: str) -> None:
        """Refuse a body whose SHA-256 differs from x-amz-content-sha256."""
        claimed = request.header("x-amz-content-sha256")
        if claimed is not None and not hmac.compare_digest(claimed.encode("utf-8", "replace"), body_hash.encode()):
            raise self.refused(
                Refusal.WRONG,
                "The provided 'x-amz-content-sha256' header does not match what was computed: "
                f"the body's SHA-256 is {body_hash}.",
            )


def _is_signed_by(secret: str, head: _Head, request: HttpRequest, *, body_hash: str) -> bool:
    authorization = head.authorization
    signing_request = sigv4.SigningRequest(request.method, request.raw_path, head.query, request.headers)
    key = sigv4.signing_key(secret, date=authorization.date, region=authorization.region, service=authorization.service)
    canonical = ""
    # Clients sign the path as they send it, or its canonical form; for nearly all requests the two are equal.
    for normalize in (False, True):
        previous, canonical = (
            canonical,
            sigv4.canonical_request(
                signing_request,
                authorization.signed_headers,
                payload_hash=body_hash,
                service=authorization.service,
                normalize=normalize,
            ),
        )
        if canonical == previous:
            return False
        text = sigv4.string_to_sign(canonical, amz_date=head.amz_date, scope=authorization.scope)
        if hmac.compare_digest(sigv4.signature(key, text), authorization.signature):
            return True
    return False


def _date_of(request: HttpRequest) -> str:
    amz_date = request.header("x-amz-date")
    if amz_date is not None:
        return amz_date
    date = request.header("date")
    if date is None:
        raise ContractError("Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header.")
    try:
        return parsedate_to_datetime(date).astimezone(UTC).strftime(sigv4.DATE_FORMAT)
    except (ValueError, OverflowError) as error:
        raise ContractError(f"The 'Date' header cannot be read: {date[:80]!r}") from error


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime(sigv4.DATE_FORMAT)


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{minutes:g} min." if minutes >= 1 else f"{seconds:g} s."
