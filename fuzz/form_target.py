"""Browser uploads: forms in pieces of any size, policies of any JSON, signed forms that were changed on their way.

What must hold: nothing but WireError comes out; a form that is accepted carries the policy that was signed, goes to the
bucket and below the key that the policy names, and makes no header with a line's end in it; a file comes out as it went
in, or not at all.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from clary.base.errors import WireError
from clary.contract import sigv4
from clary.control.objects.forms.form_data import FormReader, boundary_of
from clary.control.objects.forms.form_upload import FormUpload, judge_form, redirect_address, within_bounds
from clary.control.objects.forms.post_policy import read_policy
from clary.control.permissions.temporary_keys import TemporaryKeys
from fuzz.byte_reader import ByteReader
from fuzz.findings import found, require
from fuzz.signed_requests import KEY, NOW, SECRETS, SKEW_S
from fuzz.targets import Run

REGION, BUCKET, PREFIX = "us-west-2", "bucket", "in/"
KEYS = TemporaryKeys(b"master")
BOUNDARY = b"xyz"
_LATER = (NOW + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
_NAMES = (
    *("key", "acl", "content-type", "x-amz-meta-a", "success_action_redirect", "success_action_status", "bucket"),
    *("policy", "x-amz-signature", "signature", "x-amz-credential", "x-amz-date", "x-amz-security-token", "tagging"),
)
_VALUES = ("in/a", "in/../a", "out/a", "in/${filename}", "https://h/x?y#z", "//h", "a\r\nb: c", "", "201", "bucket")
_JSON = (
    *('{"expiration":', f'"{_LATER}"', ',"conditions":[', '{"bucket":"bucket"}', '["starts-with","$key","in/"]', ","),
    *("]}", "[", "null", "true", "-1", "1e999", '["content-length-range",', '"\\ud800"', '["eq","$', "9" * 5000),
)
_FORM = (
    *(b"--xyz\r\n", b"\r\n--xyz", b"--\r\n", b"Content-Disposition: form-data; ", b'name="file"', b'name="key"'),
    *(b'; filename="a\\"b"', b"; filename*=utf-8''%ff%2f", b"\r\n\r\n", b"\r\n", b"\xff", b"\r\n--xy"),
)


@contextmanager
def open_target() -> Iterator[Run]:
    """Yield the function that takes an input."""
    with asyncio.Runner() as runner:
        yield lambda data: _run(data, runner)


def _run(data: bytes, runner: asyncio.Runner) -> None:
    reader = ByteReader(data)
    kind = reader.below(4)
    if kind == 0:
        _run_signed(reader)
    elif kind == 1:
        text = "".join(reader.word(_JSON) for _ in range(reader.below(40)))
        encoded = base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()
        _quietly(lambda: read_policy(encoded if reader.chance() else reader.text()))
    elif kind == 2:
        body = b"".join(reader.choose(_FORM) if reader.chance() else reader.chunk() for _ in range(reader.below(30)))
        _quietly(lambda: runner.run(_read(body, 1 + reader.byte())))
        _quietly(lambda: boundary_of(f"multipart/form-data; {reader.text()}"))
    else:
        _run_file(reader, runner)


def _run_signed(reader: ByteReader) -> None:
    """Sign a form, change fields of it, and check that an accepted form stays within its signed policy."""
    is_version_4 = not reader.chance()
    fields = _signed(is_version_4)
    policy = fields["policy"]
    for _ in range(reader.below(5)):
        name = reader.word(_NAMES).lower()
        if reader.chance(4):
            fields.pop(name, None)
        else:
            fields[name] = reader.word(_VALUES).encode("utf-8", "ignore").decode()
    upload = _judge(fields, file_name=reader.text().encode("utf-8", "ignore").decode())
    if upload is None:
        return
    require(fields["policy"] == policy, "another policy than the signed one is accepted", fields=fields)
    place = (upload.asked.bucket, upload.asked.key.startswith(PREFIX), "/../" in f"/{upload.asked.key}/")
    require(place == (BUCKET, True, False), "a form reaches another place", asked=upload.asked)
    for name, value in upload.headers:
        require(
            "\n" not in name + value and "\r" not in name + value, "a field forges a header", name=name, value=value
        )
        require(name != "x-amz-copy-source", "a form copies", value=value)
    if upload.redirect:
        address = redirect_address(upload, '"e"')
        require(address.startswith(("http://", "https://")), "a form leads elsewhere", address=address)
        require(address.isprintable(), "an address forges a header", address=address)


def _signed(is_version_4: bool) -> dict[str, str]:
    date = NOW.strftime(sigv4.DATE_FORMAT)
    credential = f"{KEY.access_key_id}/{date[:8]}/{REGION}/s3/{sigv4.TERMINATOR}"
    given = {"x-amz-algorithm": sigv4.ALGORITHM, "x-amz-credential": credential, "x-amz-date": date}
    conditions: list[Any] = [{"bucket": BUCKET}, ["starts-with", "$key", PREFIX]]
    conditions += [["starts-with", f"${name}", ""] for name in _NAMES if name not in ("bucket", "key", *given)]
    fields = {"key": f"{PREFIX}a"}
    if is_version_4:
        conditions += [{name: value} for name, value in given.items()]
        fields |= given
    document = json.dumps({"expiration": _LATER, "conditions": conditions})
    fields["policy"] = base64.b64encode(document.encode()).decode()
    if is_version_4:
        key = sigv4.signing_key(KEY.secret_access_key, date=date[:8], region=REGION, service="s3")
        return fields | {"x-amz-signature": sigv4.signature(key, fields["policy"])}
    digest = hmac.digest(KEY.secret_access_key.encode(), fields["policy"].encode(), "sha1")
    return fields | {"awsaccesskeyid": KEY.access_key_id, "signature": base64.b64encode(digest).decode()}


def _judge(fields: dict[str, str], *, file_name: str) -> FormUpload | None:
    try:
        return judge_form(
            fields,
            bucket=BUCKET,
            file_name=file_name,
            find_secret=SECRETS.get,
            now=NOW,
            skew_s=SKEW_S,
            region=REGION,
            temporary=KEYS,
        )
    except WireError as error:
        require(error.http_status in (400, 403, 501), "a refusal has another status", status=error.http_status)
        if any(secret in error.message for secret in SECRETS.values()):
            found("a refusal holds a key", message=error.message)
        return None


def _run_file(reader: ByteReader, runner: asyncio.Runner) -> None:
    """Put a file into a whole or cut form, and check that exactly this file passes, or nothing."""
    content = b"".join(reader.choose(_FORM) if reader.chance(4) else reader.chunk() for _ in range(reader.below(6)))
    if b"\r\n--xyz" in b"\r\n" + content:
        return  # no browser chooses a boundary that stands in the file
    head = b'--xyz\r\nContent-Disposition: form-data; name="key"\r\n\r\nv\r\n'
    head += b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    body = head + content + b"\r\n--xyz--\r\n"
    cut = reader.below(len(body) + 1) if reader.chance() else len(body)
    passed: bytes | None
    try:
        passed = runner.run(_read(body[:cut], 1 + reader.byte()))
    except WireError:
        passed = None
    is_whole = cut >= len(head) + len(content) + len(b"\r\n--xyz")
    require(passed == (content if is_whole else None), "another file passes than was sent", passed=passed, cut=cut)


async def _read(body: bytes, size: int) -> bytes:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    form = FormReader(pieces(), BOUNDARY)
    await form.read_fields()
    policy = read_policy(_signed(True)["policy"])
    content = b"".join([piece async for piece in within_bounds(form.read_file(), policy)])
    await form.skip_rest()
    return content


def _quietly(act: Any) -> None:
    try:
        act()
    except WireError as error:
        require(error.http_status == 400, "a refusal has another status", status=error.http_status)
