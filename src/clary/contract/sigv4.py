"""AWS Signature Version 4: canonical requests, signing, presigned URLs and signed chunks.

Where: the service's API verifies clients with it, the S3 front verifies and signs again, agents and the CLI sign with
it. This module reads no clock and looks up no key: callers pass both. Strings are in the form in which they are sent: a
path and a query keep their percent-encoding.
Source: AWS General Reference, "Signature Version 4 signing process"; Amazon S3 API reference, "Authenticating
requests".

[Note: path] S3 signs the path in the form in which it is sent. Every other service normalises the path (`.`, `..`,
`//`) and percent-encodes it once more, so that `%20` is signed as `%2520`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from threading import Lock
from urllib.parse import quote, unquote, urlsplit

from clary.base.errors import ContractError, Fault
from clary.contract.launch_plan import Credentials

ALGORITHM = "AWS4-HMAC-SHA256"
CHUNK_ALGORITHM = "AWS4-HMAC-SHA256-PAYLOAD"
TRAILER_ALGORITHM = "AWS4-HMAC-SHA256-TRAILER"
TERMINATOR = "aws4_request"
DATE_FORMAT = "%Y%m%dT%H%M%SZ"
EMPTY_HASH = hashlib.sha256(b"").hexdigest()
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
STREAMING_PAYLOAD = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
STREAMING_PAYLOAD_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
STREAMING_UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
PRESIGNED_MAX_EXPIRES_S = 7 * 24 * 3600  # S3 API reference: one week
UNRESERVED = "-_.~"  # besides letters and digits; RFC 3986 section 2.3
PATH_SAFE = "/" + UNRESERVED
KEY_CACHE_SIZE = 4096
SECURITY_TOKEN = "x-amz-security-token"  # noqa: S105 - the name of a header and of a parameter of URLs
# Advice on a session token that this service did not issue.
TOKEN_HINT = "Keys of `clary env` come without a session token: unset AWS_SESSION_TOKEN."  # noqa: S105

# Headers that clients leave unsigned, because they hold the signature or because proxies rewrite them.
UNSIGNED_HEADERS = frozenset({"authorization", "connection", "expect", "transfer-encoding", "user-agent"})

HeaderPairs = Mapping[str, str] | Sequence[tuple[str, str]]

_AUTHORIZATION = re.compile(
    r"\s*AWS4-HMAC-SHA256\s+Credential=(?P<credential>[^,\s]+)\s*,\s*SignedHeaders=(?P<headers>[^,\s]+)\s*,"
    r"\s*Signature=(?P<signature>[^,\s]+)\s*"
)
_SPACES = re.compile(r"[ \t]+")
_HEX_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_PLAIN_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9_.~-]+)*/?")
_CANONICAL_TEXT = re.compile(r"(?:[A-Za-z0-9_.~-]|%[0-9A-F]{2})*")


@dataclass(frozen=True)
class SigningRequest:
    """Signed parts of a request besides its payload; `raw_path` and `query` in the form in which they are sent."""

    method: str
    raw_path: str
    query: str
    headers: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Authorization:
    """Content of an Authorization header, or of the query of a presigned URL."""

    access_key_id: str
    date: str  # YYYYMMDD
    region: str
    service: str
    signed_headers: tuple[str, ...]  # lower case, in the client's order
    signature: str  # 64 lower-case hexadecimal digits

    @property
    def scope(self) -> str:
        """Credential scope: date, region, service and terminator."""
        return f"{self.date}/{self.region}/{self.service}/{TERMINATOR}"


@dataclass(frozen=True, kw_only=True)
class PresignedAuthorization:
    """Content of the query of a presigned URL."""

    authorization: Authorization
    amz_date: str  # YYYYMMDDTHHMMSSZ
    expires_s: int
    unsigned_query: str  # the query without X-Amz-Signature, as it was signed
    session_token: str  # empty for keys without a token
    payload_hash: str  # X-Amz-Content-Sha256, UNSIGNED-PAYLOAD if the URL names none


def parse_authorization(header: str) -> Authorization:
    """Parse an Authorization header.

    Raises: ContractError naming the part that is missing or malformed; the header itself is never repeated.
    """
    match = _AUTHORIZATION.fullmatch(header)
    if match is None:
        raise _malformed(_missing_part(header))
    return _authorization(match["credential"], match["headers"], match["signature"])


def parse_presigned(query: str) -> PresignedAuthorization | None:
    """Parse the query of a presigned URL; return None if it carries no X-Amz-Signature.

    Raises: ContractError naming the parameter that is missing or malformed.
    """
    values: dict[str, str] = {}
    kept: list[str] = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        decoded = unquote(name)
        if decoded.lower().startswith("x-amz-"):
            values.setdefault(decoded.lower(), unquote(value))
        if decoded.lower() != "x-amz-signature":
            kept.append(part)
    if "x-amz-signature" not in values:
        return None
    for name in ("x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires", "x-amz-signedheaders"):
        if not values.get(name):
            raise _malformed(f"the query of a presigned URL requires '{name}'")
    if values["x-amz-algorithm"] != ALGORITHM:
        raise _malformed(f"'x-amz-algorithm' must be {ALGORITHM}")
    expires = values["x-amz-expires"]
    if not (expires.isascii() and expires.isdigit() and len(expires) <= len(str(PRESIGNED_MAX_EXPIRES_S))):
        raise _malformed(f"'x-amz-expires' must be a number of seconds up to {PRESIGNED_MAX_EXPIRES_S}")
    if not 0 < int(expires) <= PRESIGNED_MAX_EXPIRES_S:
        raise _malformed(f"'x-amz-expires' must be from 1 to {PRESIGNED_MAX_EXPIRES_S} seconds, got {expires}")
    return PresignedAuthorization(
        authorization=_authorization(
            values["x-amz-credential"], values["x-amz-signedheaders"], values["x-amz-signature"]
        ),
        amz_date=values["x-amz-date"],
        expires_s=int(expires),
        unsigned_query="&".join(kept),
        session_token=values.get(SECURITY_TOKEN, ""),
        payload_hash=values.get("x-amz-content-sha256", UNSIGNED_PAYLOAD),
    )


def parse_date(amz_date: str) -> datetime:
    """Parse a SigV4 time (`YYYYMMDDTHHMMSSZ`) to an aware datetime.

    Raises: ContractError for any other text.
    """
    if len(amz_date) == 16 and amz_date.isascii() and amz_date[8] == "T" and amz_date[15] == "Z":
        digits = amz_date[:8] + amz_date[9:15]
        if digits.isdigit():
            try:
                return datetime(
                    int(digits[0:4]),
                    int(digits[4:6]),
                    int(digits[6:8]),
                    int(digits[8:10]),
                    int(digits[10:12]),
                    int(digits[12:14]),
                    tzinfo=timezone.utc,
                )
            except ValueError as error:
                raise _malformed(f"the time {amz_date!r} does not exist: {error}") from error
    raise _malformed(f"expected a time like 20260131T235959Z, got {amz_date[:40]!r}")


def payload_hash(body: bytes) -> str:
    """Return the hexadecimal SHA-256 of a body."""
    return hashlib.sha256(body).hexdigest()


def canonical_request(
    request: SigningRequest,
    signed_headers: Sequence[str],
    *,
    payload_hash: str,
    service: str,
    normalize: bool = False,
) -> str:
    """Return the canonical request.

    Args:
        signed_headers: lower-case names in the order of the Authorization header.
        payload_hash: hexadecimal SHA-256 of the body, or one of S3's constants for bodies that are not hashed.
        service: name in the credential scope; `s3` signs the path unchanged ([Note: path]).
        normalize: decode and encode path and query again, for clients that sign the canonical form but send another
            form (a raw `*` or `+`, lower-case percent-encoding).
    """
    path = request.raw_path or "/"
    if service == "s3":
        path = _once_encoded(path, safe=PATH_SAFE) if normalize else path
    else:
        # For other services an encoded slash is part of a name and not a separator.
        path = "/".join(_once_encoded(part) for part in path.split("/")) if normalize else path
        path = _twice_encoded(path)
    values: dict[str, str] = {}
    for name, value in request.headers:
        lowered = name.lower()
        if lowered not in signed_headers:
            continue
        # Sequential spaces count as one space; several headers with the same name count as one header with commas.
        # Other white space stays: verifiers do not treat it as spaces either.
        trimmed = _SPACES.sub(" ", value.strip(" \t"))
        values[lowered] = f"{values[lowered]},{trimmed}" if lowered in values else trimmed
    query = request.query
    if normalize and service != "s3":
        # `+` means a space here, as in HTML forms; the service decodes it in the same way
        query = query.replace("+", "%20")
    lines = [request.method.upper(), path, canonical_query(query, normalize=normalize)]
    lines.extend(f"{name}:{values.get(name, '')}" for name in signed_headers)
    lines.append("")
    lines.append(";".join(signed_headers))
    lines.append(payload_hash)
    return "\n".join(lines)


def canonical_query(query: str, *, normalize: bool = False) -> str:
    """Return the query with its parameters sorted by name, then value."""
    if not query:
        return ""
    pairs: list[tuple[str, str]] = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if not normalize:
            pairs.append((name, value))
        elif part:
            pairs.append((_once_encoded(name), _once_encoded(value)))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def string_to_sign(canonical: str, *, amz_date: str, scope: str) -> str:
    """Return the text whose HMAC is the signature.

    Args:
        canonical: result of `canonical_request`.
        amz_date: time of the request, YYYYMMDDTHHMMSSZ.
        scope: `<date>/<region>/<service>/aws4_request`.
    """
    digest = hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{ALGORITHM}\n{amz_date}\n{scope}\n{digest}"


def signing_key(secret_access_key: str, *, date: str, region: str, service: str) -> bytes:
    """Return the key of one day, region and service (32 bytes), from the cache if possible.

    Args:
        date: date of the request, YYYYMMDD.
        region: such as us-east-1.
        service: such as s3.
    """
    return _KEYS.get(secret_access_key, date, region, service)


def signature(key: bytes, text: str) -> str:
    """Return the signature of a string to sign, in lower-case hexadecimal."""
    return hmac.digest(key, text.encode("utf-8", "surrogateescape"), "sha256").hex()


def sign(
    method: str,
    url_path: str,
    query: str,
    headers: HeaderPairs,
    payload_hash: str,
    *,
    credentials: Credentials,
    region: str,
    service: str,
    now: datetime,
    signed_header_names: Iterable[str] | None = None,
) -> dict[str, str]:
    """Return the headers that sign a request: x-amz-date, x-amz-content-sha256 and authorization.

    Args:
        url_path: path as it will be sent, percent-encoded.
        query: query as it will be sent, without `?`.
        headers: headers of the request; must hold `host`. x-amz-date and x-amz-content-sha256 in it are replaced.
        payload_hash: hexadecimal SHA-256 of the body, or UNSIGNED_PAYLOAD and its kin for S3.
        now: aware time of the request.
        signed_header_names: names to sign besides the two added headers; with None, every header that proxies do not
            change is signed.
    Raises: ContractError if `host` is missing, which every signature must cover.
    """
    amz_date = now.astimezone(timezone.utc).strftime(DATE_FORMAT)
    added = {"x-amz-date": amz_date, "x-amz-content-sha256": payload_hash}
    pairs = [(name, value) for name, value in _pairs(headers) if name.lower() not in added]
    pairs.extend(added.items())
    names = {name.lower() for name, _ in pairs} - UNSIGNED_HEADERS
    if signed_header_names is not None:
        names &= {name.lower() for name in signed_header_names} | added.keys()
    if "host" not in names:
        raise ContractError(f"{method} {url_path} cannot be signed without a 'host' header: add it, with its port")
    signed = tuple(sorted(names))
    date = amz_date[:8]
    canonical = canonical_request(
        SigningRequest(method, url_path, query, pairs), signed, payload_hash=payload_hash, service=service
    )
    scope = f"{date}/{region}/{service}/{TERMINATOR}"
    key = signing_key(credentials.secret_access_key, date=date, region=region, service=service)
    signed_text = signature(key, string_to_sign(canonical, amz_date=amz_date, scope=scope))
    added["authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key_id}/{scope}, "
        f"SignedHeaders={';'.join(signed)}, Signature={signed_text}"
    )
    return added


def presign_url(
    method: str,
    url: str,
    *,
    credentials: Credentials,
    region: str,
    now: datetime,
    expires_s: int,
    service: str = "s3",
    headers: HeaderPairs = (),
) -> str:
    """Return `url` with a query that lets any holder make this one request until the query expires.

    Args:
        url: absolute URL, path and query percent-encoded.
        headers: headers that the caller will have to send besides `host`, and that are signed.
        expires_s: seconds from `now`, at most one week.
    """
    parts = urlsplit(url)
    amz_date = now.astimezone(timezone.utc).strftime(DATE_FORMAT)
    scope = f"{amz_date[:8]}/{region}/{service}/{TERMINATOR}"
    pairs = [(name.lower(), value) for name, value in _pairs(headers) if name.lower() != "host"]
    pairs.append(("host", parts.netloc.rpartition("@")[2]))
    signed = tuple(sorted({name for name, _ in pairs}))
    parameters = {
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key_id}/{scope}",
        "X-Amz-Date": amz_date,
        "X-Amz-Expires": str(expires_s),
        "X-Amz-SignedHeaders": ";".join(signed),
    }
    added = "&".join(f"{name}={quote(value, safe=UNRESERVED)}" for name, value in parameters.items())
    query = f"{parts.query}&{added}" if parts.query else added
    payload_hash = UNSIGNED_PAYLOAD if service == "s3" else EMPTY_HASH
    canonical = canonical_request(
        SigningRequest(method, parts.path, query, pairs), signed, payload_hash=payload_hash, service=service
    )
    key = signing_key(credentials.secret_access_key, date=amz_date[:8], region=region, service=service)
    signed_text = signature(key, string_to_sign(canonical, amz_date=amz_date, scope=scope))
    return f"{parts.scheme}://{parts.netloc}{parts.path or '/'}?{query}&X-Amz-Signature={signed_text}"


def chunk_signature(key: bytes, *, previous: str, chunk_hash: str, amz_date: str, scope: str) -> str:
    """Return the signature of one chunk of a STREAMING-AWS4-HMAC-SHA256-PAYLOAD body.

    Args:
        key: result of `signing_key`.
        previous: signature of the chunk before, or of the request's headers (the seed) for the first one.
        chunk_hash: hexadecimal SHA-256 of the chunk's data; `EMPTY_HASH` for the last one.
    """
    return signature(key, f"{CHUNK_ALGORITHM}\n{amz_date}\n{scope}\n{previous}\n{EMPTY_HASH}\n{chunk_hash}")


def trailer_signature(key: bytes, *, previous: str, trailer_hash: str, amz_date: str, scope: str) -> str:
    """Return the signature of the trailing headers of a STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER body.

    Args:
        previous: signature of the last chunk.
        trailer_hash: hexadecimal SHA-256 of the trailing headers, each as `name:value` and a line feed.
    """
    return signature(key, f"{TRAILER_ALGORITHM}\n{amz_date}\n{scope}\n{previous}\n{trailer_hash}")


class _KeyCache:
    """Bounded cache of signing keys, by a hash of their inputs, so that no secret is a cache key."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._keys: dict[bytes, bytes] = {}
        self._lock = Lock()

    def get(self, secret_access_key: str, date: str, region: str, service: str) -> bytes:
        # NUL occurs in no part, so that different lists of parts never have the same hash.
        parts = f"{secret_access_key}\0{date}\0{region}\0{service}".encode("utf-8", "surrogateescape")
        name = hashlib.sha256(parts).digest()
        key = self._keys.get(name)
        if key is None:
            key = _derive_key(secret_access_key, date, region, service)
            with self._lock:
                while len(self._keys) >= self._size:
                    del self._keys[next(iter(self._keys))]
                self._keys[name] = key
        return key


_KEYS = _KeyCache(KEY_CACHE_SIZE)


def _derive_key(secret_access_key: str, *parts: str) -> bytes:
    key = f"AWS4{secret_access_key}".encode("utf-8", "surrogateescape")
    for part in (*parts, TERMINATOR):
        key = hmac.digest(key, part.encode("utf-8", "surrogateescape"), "sha256")
    return key


def _authorization(credential: str, headers: str, signature_text: str) -> Authorization:
    # An access key may contain slashes; the scope's four parts may not.
    parts = credential.rsplit("/", 4)
    if len(parts) != 5 or not all(parts):
        raise _malformed("Credential must be <access key>/<date>/<region>/<service>/aws4_request")
    access_key_id, date, region, service, terminator = parts
    if terminator != TERMINATOR:
        raise _malformed(f"Credential should be scoped with a valid terminator: '{TERMINATOR}'")
    if not (len(date) == 8 and date.isascii() and date.isdigit()):
        raise _malformed("the date of Credential must be YYYYMMDD")
    if _HEX_SIGNATURE.fullmatch(signature_text) is None:
        raise _malformed("Signature must be 64 lower-case hexadecimal digits")
    return Authorization(
        access_key_id=access_key_id,
        date=date,
        region=region,
        service=service,
        signed_headers=tuple(headers.lower().split(";")),
        signature=signature_text,
    )


def _missing_part(header: str) -> str:
    if not header.lstrip().startswith(ALGORITHM):
        return f"expected the algorithm {ALGORITHM}"
    for part in ("Credential", "SignedHeaders", "Signature"):
        if f"{part}=" not in header:
            return f"Authorization header requires '{part}' parameter"
    return "expected 'Credential=..., SignedHeaders=..., Signature=...' in this order"


def _malformed(what: str) -> ContractError:
    return ContractError(f"Malformed signature: {what}", fault=Fault.USER)


def _twice_encoded(path: str) -> str:
    if _PLAIN_PATH.fullmatch(path):
        return path or "/"
    kept: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if kept:
                kept.pop()
        elif part not in ("", "."):
            kept.append(part)
    normalized = "/" + "/".join(kept)
    if kept and path.endswith("/"):
        normalized += "/"
    return quote(normalized, safe=PATH_SAFE, errors="surrogateescape")


def _once_encoded(text: str, *, safe: str = UNRESERVED) -> str:
    if _CANONICAL_TEXT.fullmatch(text) and "%" not in text:
        return text
    return quote(unquote(text, errors="surrogateescape"), safe=safe, errors="surrogateescape")


def _pairs(headers: HeaderPairs) -> Iterable[tuple[str, str]]:
    if isinstance(headers, Mapping):
        return headers.items()
    return headers
