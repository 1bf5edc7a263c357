"""S3 in front of the object store: verifies callers, adapts requests that the store refuses, signs again, streams.

Where: `server.edge.listener` routes S3 requests here; the store (embedded or any endpoint) does all other work. The
front exists for three reasons: one port for all services; SDKs send `x-amz-server-side-encryption: aws:kms`, a signed
header that SeaweedFS answers with 500; every job has a key of its own, which the store does not know. Bodies are
streamed in both directions, with back-pressure; [Note: the last piece] in `payloads`.
"""

from __future__ import annotations

import asyncio
import http
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import aiohttp
from aiohttp import web

from clary.base.clock import Clock
from clary.base.errors import WireError
from clary.contract import sigv4
from clary.contract.launch_plan import Endpoint
from clary.contract.object_store import stored_names
from clary.control.objects import bucket_regions, completed_answers, copying, encryption, listed_entries, s3_request
from clary.control.objects.authentication import Caller, FindSecret, authenticate
from clary.control.objects.deletions.deletion_limit import DeletionLimit
from clary.control.objects.encryption import Encryption
from clary.control.objects.forms import form_upload
from clary.control.objects.forms.form_data import FormReader, boundary_of
from clary.control.objects.forms.form_upload import object_address
from clary.control.objects.forms.public_access import is_of_public_access, public_access_answer
from clary.control.objects.forms.subresources import (
    check_lifecycle,
    check_policy,
    check_store_pages,
    check_subresources,
)
from clary.control.objects.front_answers import (
    BUCKET_REGION,
    error_response,
    form_answer,
    read_listing,
    relay,
    whole,
)
from clary.control.objects.incoming_body import IncomingBody
from clary.control.objects.listings.empty_listings import empty_listing
from clary.control.objects.listings.ordered_listing import lists_in_order, ordered_listing
from clary.control.objects.outgoing_bodies import Outgoing, choose_body, content_length, look_at_deleted_keys
from clary.control.objects.permits.hidden_markers import HiddenMarkers
from clary.control.objects.permits.permit import Permit
from clary.control.objects.public.public_door import PublicDoor
from clary.control.objects.public.public_store import PublicBuckets
from clary.control.objects.s3_request import S3Request
from clary.control.objects.store_link import StoreLink
from clary.control.permissions.grants import Grants
from clary.control.permissions.temporary_keys import TemporaryKeys

FORM_TIMEOUT_S = 30.0  # longest time to receive all fields before a form's file

# Hop-by-hop headers, headers that are signed again, and headers that this module handles.
_NOT_FORWARDED = frozenset(
    {
        "host",
        "authorization",
        "connection",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
        "date",
        "content-length",
        # SeaweedFS would verify its signature with the host that a reverse proxy names.
        "forwarded",
        "via",
        "x-real-ip",
        "x-amz-date",
        "x-amz-content-sha256",
        "x-amz-security-token",
        "x-amz-expected-bucket-owner",
        "x-amz-source-expected-bucket-owner",
    }
)
_OF_PROXIES = "x-forwarded-"  # prefix of further headers of reverse proxies, not forwarded either
# SeaweedFS stores headers of these names as its own attributes of an object, such as the number of its version.
_OF_STORE = ("seaweed-", "x-seaweed")
# SeaweedFS ignores these conditions and places of a write, and would overwrite or remove the whole object.
_IGNORED_BY_STORE = frozenset(
    {
        "x-amz-write-offset-bytes",
        "x-amz-mp-object-size",
        "x-amz-if-match-size",
        "x-amz-if-match-last-modified-time",
    }
)
_OWNER_HEADERS = ("x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner")
# answers of the embedded store to a request for the first part of an empty object
_NO_PART = frozenset({http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, http.HTTPStatus.INTERNAL_SERVER_ERROR})
_GOOD = (http.HTTPStatus.OK, http.HTTPStatus.PARTIAL_CONTENT)
# ETag with which SeaweedFS answers reads of `a/` if only `a/b` exists; the ETag of a stored `a/` has no `-0` at its
# end.
_IMPLIED_FOLDER_ETAG = '"d41d8cd98f00b204e9800998ecf8427e-0"'


class S3Front:
    """Admits S3 requests of callers whose key `find_secret` knows, and forwards them to one store.

    Args:
        store_endpoint: the store and its own key.
        find_secret: secret access key of an access key id, None if unknown; called for every request.
        account_id: the account that owns every bucket, twelve digits.
        clock: time of day for signatures.
        skew_s: largest difference of a request's time from `clock`.
        forward_encryption: pass x-amz-server-side-encryption headers on. False for the embedded store, which has no
            KMS: then they are stored as metadata of the object and returned, and nothing is encrypted (`encryption`).
        bucket_of_own_host: returns the bucket that a Host header names in front of one of the service's own names, or
            None.
        find_grants: returns the grants of a key; None permits every request. Called for every request.
        region: the only region that signatures may name; None accepts every region.
        note_known: called for a request whose sender is authenticated by its body alone.
        why_full: returns a sentence if the store's disk is full, else an empty text. Called when the store fails.
        temporary: verifies keys with a session token; None refuses them.
        public: reads public buckets of AWS that do not exist here; None reads none. Opened and closed with the front.
    """

    def __init__(
        self,
        store_endpoint: Endpoint,
        find_secret: FindSecret,
        *,
        account_id: str,
        clock: Clock,
        skew_s: float,
        forward_encryption: bool = False,
        bucket_of_own_host: Callable[[str], str | None] = lambda _host: None,
        find_grants: Callable[[str], Grants | None] = lambda _: None,
        region: str | None = None,
        note_known: Callable[[web.BaseRequest], None] = lambda _request: None,
        why_full: Callable[[], str] = lambda: "",
        temporary: TemporaryKeys | None = None,
        public: PublicBuckets | None = None,
    ) -> None:
        self._temporary = temporary
        self._region = region
        self._note_known = note_known
        self._store = StoreLink(store_endpoint, clock)
        self._hidden = HiddenMarkers(store_endpoint.credentials.secret_access_key)
        self._find_secret = find_secret
        self._account_id = account_id
        self._clock = clock
        self._skew_s = skew_s
        self._forward_encryption = forward_encryption
        self._public = PublicDoor(
            public or PublicBuckets(()),
            self._store,
            clock=clock,
            region=region or store_endpoint.region,
            forward_encryption=forward_encryption,
            refuse_where_full=self._refuse_where_full,
        )
        self._bucket_of_own_host = bucket_of_own_host
        self._deletions = DeletionLimit()
        self._find_grants = find_grants
        self._why_full = why_full

    async def start(self) -> None:
        """Open the pools of connections; the store need not answer yet."""
        await self._store.open()
        await self._public.open()

    async def close(self) -> None:
        """Close all connections; running requests break off."""
        await self._public.close()
        await self._store.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one S3 request; refusals are answers, too, in S3's XML format.

        The bucket is in the path or in the Host header: before an AWS name of S3 (old clients behind the proxy, which
        know no endpoint variable), or before one of the service's own names. The body of a request that is refused by
        its head is not read.
        """
        body = IncomingBody(request)
        resource = request.raw_path.partition("?")[0]
        try:
            raw_path, raw_query = s3_request.split_target(request.raw_path)
            host = request.headers.get("Host", "")
            bucket = s3_request.bucket_of_host(host) or self._bucket_of_own_host(host)
            if form_upload.is_form(request.method, request.headers, raw_query):
                return await self._take_form(request, body, raw_path=raw_path, host_bucket=bucket)
            caller = self._authenticate(request, raw_path, raw_query, host_bucket=bucket)
            asked = s3_request.parse_request(request.method, f"/{bucket}{raw_path}" if bucket else raw_path, raw_query)
            resource = asked.resource
            if not self._forward_encryption:
                check_store_pages(asked.bucket, makes_bucket=bucket_regions.makes_bucket(asked))
                check_subresources(asked)
            if await self._public.reads(asked):
                return await self._public.answer(request, asked, _all_headers(request, asked))
            permit = Permit(self._find_grants(caller.access_key_id), request, asked, hidden=self._hidden)
            if asked.has_unstorable_prefix:
                return await self._answer_empty_listing(request, asked)
            asked = permit.with_clear_markers(asked)
            with self._deletions.entered(caller.access_key_id) if asked.is_delete_objects else nullcontext():
                outgoing = await self._translate(request, asked, caller, body, permit)
                if source := await self._public.source_of(asked, outgoing):
                    return await self._public.answer_copy(request, asked, outgoing, body, source)
                return await self._exchange(request, asked, outgoing, body, permit)
        except WireError as error:
            return error_response(request, body.error or error, resource)

    async def _take_form(
        self, request: web.BaseRequest, body: IncomingBody, *, raw_path: str, host_bucket: str | None
    ) -> web.StreamResponse:
        """Store the file of a browser's form; the file is not read before its policy is verified."""
        place = s3_request.parse_request("POST", f"/{host_bucket}{raw_path}" if host_bucket else raw_path, "")
        if place.key:
            raise WireError("MethodNotAllowed", "A form is posted to its bucket, not to a key.", http_status=405)
        if not self._forward_encryption:
            check_store_pages(place.bucket, makes_bucket=False)
        form = FormReader(body.pieces(), boundary_of(request.headers.get("Content-Type", "")))
        try:
            async with asyncio.timeout(FORM_TIMEOUT_S):
                fields = await form.read_fields()
        except TimeoutError as error:
            raise WireError("RequestTimeout", f"The form's fields did not come in {FORM_TIMEOUT_S:.0f} s.") from error
        upload = form_upload.judge_form(
            fields,
            bucket=place.bucket,
            file_name=form.file_name,
            find_secret=self._find_secret,
            now=self._clock.now(),
            skew_s=self._skew_s,
            region=self._region,
            temporary=self._temporary,
        )
        # Raises if a job's key would be used to upload to a place that the job's request does not name.
        Permit(self._find_grants(upload.access_key_id), request, upload.asked, hidden=self._hidden)
        self._note_known(request)
        wanted = encryption.asked_encryption(upload.headers)
        headers = self._translate_headers(upload.headers)
        if not self._forward_encryption:
            headers = await self._mark(upload.asked, headers, wanted)
        file = form_upload.within_bounds(form.read_file(), upload.policy)
        outgoing = Outgoing(headers=headers, payload_hash=sigv4.UNSIGNED_PAYLOAD, data=body.guarded(file))
        answer = await self._store.send(upload.asked, outgoing, body)
        try:
            self._refuse_where_full(answer)
            if answer.status != http.HTTPStatus.OK:
                return await relay(request, answer)
            await form.skip_rest()
            told = [] if self._forward_encryption else encryption.told_headers(upload.asked, wanted, answer.headers)
            return form_answer(request, upload, answer.headers, told, is_bucket_in_host=host_bucket is not None)
        finally:
            answer.release()

    def _authenticate(
        self, request: web.BaseRequest, raw_path: str, raw_query: str, *, host_bucket: str | None
    ) -> Caller:
        signing = sigv4.SigningRequest(request.method, raw_path, raw_query, list(request.headers.items()))
        return authenticate(
            signing,
            find_secret=self._find_secret,
            now=self._clock.now(),
            skew_s=self._skew_s,
            host_bucket=host_bucket,
            region=None if bucket_regions.asks_from_anywhere(request.method, raw_query) else self._region,
            temporary=self._temporary,
        )

    async def _translate(
        self, request: web.BaseRequest, asked: S3Request, caller: Caller, body: IncomingBody, permit: Permit
    ) -> Outgoing:
        given = _all_headers(request, asked)
        wanted = encryption.asked_encryption(given)
        headers = permit.with_clear_source(self._translate_headers(given))
        if not self._forward_encryption:
            headers = await self._mark(asked, headers, wanted)
        by_name = {name.lower(): value for name, value in headers}
        copy_source = by_name.get("x-amz-copy-source")
        if copy_source is not None:
            bucket, _ = s3_request.check_copy_source(copy_source)
            if not self._forward_encryption:
                check_store_pages(bucket, makes_bucket=False)
        length = content_length(request, by_name)
        if asked.method == "PUT" and asked.key.endswith("/") and (copy_source is not None or length != 0):
            raise WireError(
                "InvalidArgument",
                f"Keys that end in '/' cannot hold content in this store: {asked.key[:200]!r}. Choose another key.",
            )
        outgoing = await choose_body(request, headers, caller, body)
        outgoing = replace(outgoing, encryption=wanted)
        if bucket_regions.makes_bucket(asked) and self._region is not None and isinstance(outgoing.data, bytes):
            bucket_regions.check_constraint(outgoing.data, self._region)
        if self._store.aliases_keys and asked.method == "PUT" and asked.has("lifecycle"):
            check_lifecycle(outgoing.data)
        if self._store.aliases_keys and asked.method == "PUT" and not asked.key and asked.has("policy"):
            check_policy(outgoing.data)
        if not asked.is_delete_objects:
            return outgoing
        turn = self._deletions.turn(caller.access_key_id)
        return await look_at_deleted_keys(outgoing, permit, aliases_keys=self._store.aliases_keys, turn=turn)

    async def _mark(
        self, asked: S3Request, headers: list[tuple[str, str]], wanted: Encryption | None
    ) -> list[tuple[str, str]]:
        """Return the headers, with a mark that stores the wanted encryption with the object."""
        if not encryption.keeps_encryption(asked):
            return headers
        if copying.keeps_metadata(asked, headers):
            bucket, key = s3_request.check_copy_source(dict(headers)[copying.COPY_SOURCE])
            if wanted is None and (bucket, key) == (asked.bucket, asked.key):
                return headers  # the store itself refuses a copy of an object onto itself that changes nothing
            version = dict(headers)[copying.COPY_SOURCE].partition("?versionId=")[2]
            status, source = await self._store.head(bucket, key, [("versionId", version)] if version else [])
            # The store itself refuses a missing source.
            return list(copying.spelt_out(headers, source, wanted)) if status == http.HTTPStatus.OK else headers
        mark = "" if wanted is None else wanted.mark
        return [*headers, (encryption.MARK, mark)] if mark else headers

    async def _answer_bucket_encryption(
        self, request: web.BaseRequest, asked: S3Request, out: Outgoing
    ) -> web.Response:
        """Answer a request for the encryption of a bucket, which the embedded store does not support."""
        if asked.method == "PUT":
            encryption.check_bucket_configuration(out.data if isinstance(out.data, bytes) else b"")
        await self._require_bucket(asked.bucket)
        match asked.method:
            case "GET":
                return whole(request, 200, encryption.DEFAULT_CONFIGURATION)
            case "PUT":
                return whole(request, 200)
            case "DELETE":
                return whole(request, 204)
            case _:
                raise WireError("MethodNotAllowed", "The specified method is not allowed.", http_status=405)

    async def _answer_empty_listing(self, request: web.BaseRequest, asked: S3Request) -> web.Response:
        content = empty_listing(asked)
        await self._require_bucket(asked.bucket)
        return whole(request, 200, content)

    async def _require_no_object_of_name(self, asked: S3Request) -> None:
        """Refuse a folder marker beside an object of its name: the store would replace the content of the object."""
        name = asked.key.removesuffix("/")
        if not name or name.endswith("/"):
            return  # a marker in a folder without a name: no key is stored under its name without the slash
        status, _ = await self._store.head(asked.bucket, name)
        if status == http.HTTPStatus.OK:
            raise WireError(
                "ExistingObjectIsFile",
                f"This store cannot hold {asked.key[:200]!r} beside the object {name[:200]!r}; nothing was changed. "
                "Delete that object, or choose another key.",
                http_status=409,
            )

    def _is_of_no_marker(self, answer: aiohttp.ClientResponse) -> bool:
        """Whether the store has read a folder, or the object of its name, where the client named the marker."""
        etag = answer.headers.get("ETag")
        if etag is None or answer.status not in _GOOD:
            return False
        has_content = self._store.aliases_keys and answer.headers.get("Content-Length", "0") != "0"
        return etag == _IMPLIED_FOLDER_ETAG or (has_content and answer.method in {"GET", "HEAD"})

    async def _require_bucket(self, bucket: str) -> None:
        status, _ = await self._store.head(bucket, "")
        if status != http.HTTPStatus.OK:
            raise WireError("NoSuchBucket", "The specified bucket does not exist", http_status=404)

    def _translate_headers(self, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        kept = []
        for name, value in headers:
            if name in _OWNER_HEADERS and value != self._account_id:
                raise WireError(
                    "AccessDenied",
                    f"Access Denied: {name} is {value[:20]!r}, but every bucket here belongs to {self._account_id!r}.",
                    http_status=403,
                )
            if name.startswith(_OF_STORE):
                raise WireError("InvalidArgument", f"The header {name[:80]} is the object store's own; leave it out.")
            if name in _IGNORED_BY_STORE and not self._forward_encryption:
                raise WireError(
                    "NotImplemented",
                    f"The header {name} is not implemented by the embedded object store; nothing was changed.",
                    http_status=http.HTTPStatus.NOT_IMPLEMENTED,
                )
            if name in _NOT_FORWARDED or name.startswith(_OF_PROXIES):
                continue
            if name.startswith(encryption.PREFIX) and not self._forward_encryption:
                continue
            if not _is_sendable(value):
                raise WireError("InvalidArgument", f"The header {name} holds bytes that are not UTF-8 text.")
            kept.append((name, value))
        return kept

    async def _exchange(
        self, request: web.BaseRequest, asked: S3Request, outgoing: Outgoing, body: IncomingBody, permit: Permit
    ) -> web.StreamResponse:
        if encryption.is_of_bucket(asked) and not self._forward_encryption:
            return await self._answer_bucket_encryption(request, asked, outgoing)
        if is_of_public_access(asked) and not self._forward_encryption:
            status, told = public_access_answer(asked.method, outgoing.data)
            await self._require_bucket(asked.bucket)
            return whole(request, status, told)
        if self._store.aliases_keys and lists_in_order(asked) and not outgoing.data:
            page = await ordered_listing(asked, lambda part: self._store_page(part, outgoing))
            if page is not None:
                return whole(request, 200, permit.filter_listing(page) if permit.is_filtered else page)
        if self._store.aliases_keys and asked.method == "PUT" and asked.key.endswith("/"):
            await self._require_no_object_of_name(asked)
        source = dict(outgoing.headers).get(copying.COPY_SOURCE) if self._store.aliases_keys else None
        if source is not None and s3_request.check_copy_source(source)[1].endswith("/"):
            # The store finds no marker as the source of a copy, and would copy the object of its name.
            raise WireError("NoSuchKey", "The specified key does not exist.", http_status=404)
        answer = await self._store.send(asked, outgoing, body)
        try:
            if completed_answers.asks_first_part(asked) and answer.status in _NO_PART and await self._is_empty(asked):
                answer.release()
                answer = await self._store.send(completed_answers.without_part(asked), outgoing)
            if answer.status == 400 and "x-amz-request-id" not in answer.headers:
                # Not an S3 answer: the store could not parse the request. Clients retry after 503, but never after 400.
                raise WireError(
                    "ServiceUnavailable",
                    "The request was damaged on its way to the object store. Please try again.",
                    http_status=503,
                )
            self._refuse_where_full(answer)
            if asked.key.endswith("/") and self._is_of_no_marker(answer):
                raise WireError("NoSuchKey", "The specified key does not exist.", http_status=404)
            if permit.is_filtered and answer.status == http.HTTPStatus.OK:
                listing = await self._listing(asked, answer)
                return whole(request, 200, permit.filter_listing(listing))
            content = await self._completed(request, asked, answer)
            return await relay(request, answer, await self._added_headers(asked, outgoing, answer), content=content)
        finally:
            # A connection on which a body may not have been sent completely must not be reused.
            answer.close() if body.is_cut_short else answer.release()

    async def _is_empty(self, asked: S3Request) -> bool:
        versions = [pair for pair in asked.query if pair[0] == "versionId"]
        status, headers = await self._store.head(asked.bucket, asked.key, versions)
        size = {name.lower(): value for name, value in headers}.get("content-length")
        return status == http.HTTPStatus.OK and size == "0"

    async def _store_page(self, asked: S3Request, outgoing: Outgoing) -> bytes | None:
        """Return the store's listing with keys in place of stored names; None for an answer that is not a listing."""
        answer = await self._store.send(asked, outgoing)
        try:
            if answer.status != http.HTTPStatus.OK:
                return None
            return stored_names.with_keys(await read_listing(answer))
        finally:
            answer.release()

    @property
    def _own_region(self) -> str:
        return self._region or self._store.region

    def _names_markers_wrongly(self, asked: S3Request) -> bool:
        return not self._forward_encryption and completed_answers.lists_encoded(asked)

    def _names_keys_of_store(self, asked: S3Request, answer: aiohttp.ClientResponse) -> bool:
        """Whether an answer is a document that may name keys by their names in the store (`stored_names`)."""
        if not self._store.aliases_keys or asked.method == "HEAD":
            return False
        if not asked.key:
            return bool(asked.bucket) and (asked.method == "GET" or asked.is_delete_objects)
        is_document = asked.method == "POST" or asked.has("uploadId") or answer.status >= http.HTTPStatus.BAD_REQUEST
        return is_document and stored_names.stored_name(asked.key) != asked.key

    async def _listing(self, asked: S3Request, answer: aiohttp.ClientResponse) -> bytes:
        content = await read_listing(answer)
        if self._store.aliases_keys:
            content = stored_names.with_keys(content)
            prefix = next((value for name, value in asked.query if name == "prefix"), "")
            if stored_names.may_match_others(prefix):
                content = listed_entries.keep_entries(content, lambda key: key.startswith(prefix))
        return completed_answers.with_encoded_markers(content) if self._names_markers_wrongly(asked) else content

    def _refuse_where_full(self, answer: aiohttp.ClientResponse) -> None:
        """Raise WireError naming a full disk if the store answers with an internal error while its disk is full.

        Clients retry after 503, so that the request succeeds once there is space.
        """
        is_failure = answer.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR
        is_lacking = answer.status == http.HTTPStatus.NOT_IMPLEMENTED  # space would not help
        if is_failure and not is_lacking and (why := self._why_full()):
            raise WireError("ServiceUnavailable", f"The object store did not do this: {why}.", http_status=503)

    async def _completed(
        self, request: web.BaseRequest, asked: S3Request, answer: aiohttp.ClientResponse
    ) -> bytes | None:
        """Return the content of an answer that is completed or replaced, None for an answer forwarded unread."""
        if answer.status == http.HTTPStatus.OK and self._names_markers_wrongly(asked):
            return await self._listing(asked, answer)
        names_keys = self._names_keys_of_store(asked, answer)
        if answer.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and asked.method == "GET":
            content = await (self._listing(asked, answer) if names_keys else read_listing(answer))
            asked_range, told_range = request.headers.get("Range", ""), answer.headers.get("Content-Range", "")
            return completed_answers.with_object_size(content, asked_range=asked_range, told_range=told_range)
        is_attributes, is_location = completed_answers.asks_attributes(asked), bucket_regions.is_location(asked)
        is_known = is_attributes or is_location or completed_answers.completes_upload(asked)
        if answer.status != http.HTTPStatus.OK or not is_known:
            return await self._listing(asked, answer) if names_keys else None
        content = b""
        async for piece in answer.content.iter_any():
            content += piece
            if len(content) > completed_answers.MAX_DOCUMENT_BYTES:
                raise WireError("InternalError", "The store's answer is too long to be looked at.", http_status=500)
        if is_location:
            return bucket_regions.location_document(self._own_region)
        if is_attributes:
            wanted = request.headers.get(completed_answers.ASKED, "")
            versions = [pair for pair in asked.query if pair[0] == "versionId"]
            checksums = [("x-amz-checksum-mode", "ENABLED")]
            _, headers = await self._store.head(asked.bucket, asked.key, versions, headers=checksums)
            return completed_answers.with_attributes(content, wanted, headers)
        content = stored_names.with_keys(content) if names_keys else content
        host = request.headers.get("Host", "")
        is_in_host = bool(s3_request.bucket_of_host(host) or self._bucket_of_own_host(host))
        address = object_address(asked, scheme=request.scheme, host=host, is_bucket_in_host=is_in_host)
        return completed_answers.with_location(content, address)

    async def _added_headers(
        self, asked: S3Request, outgoing: Outgoing, answer: aiohttp.ClientResponse
    ) -> list[tuple[str, str]]:
        if answer.status not in _GOOD:
            return []
        if asked.bucket and not asked.key and asked.method == "HEAD":
            return [(BUCKET_REGION, self._own_region)]
        if self._forward_encryption:
            return []
        # only the finished object has the encryption that was named when its upload began
        if completed_answers.completes_upload(asked):
            status, headers = await self._store.head(asked.bucket, asked.key)
            return encryption.kept_headers(dict(headers)) if status == http.HTTPStatus.OK else []
        return encryption.told_headers(asked, outgoing.encryption, answer.headers)


def _all_headers(request: web.BaseRequest, asked: S3Request) -> list[tuple[str, str]]:
    """Return the headers of a request with lower-case names, including headers moved into a presigned query.

    Raises: WireError(InvalidArgument) for several copy sources: the store may use another than the checked one.
    """
    headers = [(name.lower(), value) for name, value in request.headers.items()]
    headers.extend((name.lower(), value) for name, value in asked.query if name.lower().startswith("x-amz-"))
    if sum(name == copying.COPY_SOURCE for name, _ in headers) > 1:
        raise WireError("InvalidArgument", f"{copying.COPY_SOURCE} occurs several times: name one copy source.")
    sent = {name for name, _ in headers}
    headers.extend((name, value) for name, value in asked.headers_of_url if name not in sent)
    return headers


def _is_sendable(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
