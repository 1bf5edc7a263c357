"""Access of a trial to a bucket: lists one folder from a name on, and reads ranges of objects.

boto3 is used if it is installed, with the keys and endpoint that it finds. Environments of jobs often lack boto3; then
the agents' client is used (`contract.object_store`), with the job's variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
and AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or S3_ENDPOINT_URL.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Protocol

from clary.base.errors import ContractError, ObjectStoreError
from clary.contract.launch_plan import Credentials, Endpoint
from clary.contract.object_store import Listing, ObjectInfo, ObjectStore
from clary.train.debugger.errors import ConfigurationError, StoreError

_TIMEOUT_S = 30.0  # timeout of connecting, and of each wait for data
_ABSENT = ("404", "NoSuchKey", "NotFound")
_KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT_URL")


class Bucket(Protocol):
    """A bucket whose objects can be read."""

    name: str

    def list(self, prefix: str, after: str = "") -> Listing:
        """Return the objects directly at a prefix, and the folders there.

        Keys up to and including `after` are left out; `after` is a complete key, or empty for all keys.

        Raises: StoreError.
        """

    def read(self, key: str, start: int, length: int) -> bytes:
        """Return bytes of an object.

        Args:
            key: key of the object.
            start: offset of the first byte, which the object must have.
            length: 1 or more; fewer bytes are returned at the object's end.
        Raises: FileNotFoundError, StoreError.
        """


def open_bucket(name: str) -> Bucket:
    """Return a bucket, accessed by boto3 or by the agents' client.

    Raises: ConfigurationError that names the package to install or the variables to set.
    """
    endpoint = next((os.environ[one] for one in _ENDPOINT_VARIABLES if os.environ.get(one)), None)
    try:
        import boto3
    except ImportError:
        pass
    else:
        client = boto3.client("s3", endpoint_url=endpoint, region_name=os.environ.get("AWS_REGION") or None)
        return BotoBucket(name, client)
    if endpoint is None or not all(os.environ.get(one) for one in _KEY_VARIABLES):
        raise ConfigurationError(
            f"s3://{name} cannot be read: boto3 is not installed and {_ENDPOINT_VARIABLES[1]},"
            f" {' and '.join(_KEY_VARIABLES)} are not all set: pip install boto3, or set them"
        )
    return SignedBucket(name, endpoint=endpoint, environment=os.environ)


class BotoBucket:
    """A bucket accessed by a boto3 client, which retries by itself."""

    def __init__(self, name: str, client: Any) -> None:
        self.name, self._client = name, client

    def list(self, prefix: str, after: str = "") -> Listing:
        """Return the objects and folders at a prefix. Raises: StoreError."""
        request = {"Bucket": self.name, "Prefix": prefix, "Delimiter": "/"} | ({"StartAfter": after} if after else {})
        found = Listing()
        while True:
            try:
                page = self._client.list_objects_v2(**request)
            except Exception as error:
                raise self._named(error, "list", prefix) from error
            for item in page.get("Contents", ()):
                found.objects.append(
                    ObjectInfo(key=item["Key"], size_bytes=int(item["Size"]), etag=item.get("ETag", ""))
                )
            found.folders += [item["Prefix"] for item in page.get("CommonPrefixes", ())]
            if not page.get("IsTruncated"):
                return found
            request["ContinuationToken"] = page["NextContinuationToken"]

    def read(self, key: str, start: int, length: int) -> bytes:
        """Return bytes of an object.

        Args: as `Bucket.read`.
        Raises: FileNotFoundError, StoreError.
        """
        try:
            answer = self._client.get_object(Bucket=self.name, Key=key, Range=f"bytes={start}-{start + length - 1}")
            data: bytes = answer["Body"].read()
        except Exception as error:
            raise self._named(error, "read", key) from error
        return data

    def _named(self, error: Exception, doing: str, key: str) -> OSError:
        answer = getattr(error, "response", None)
        code = str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""
        return _failure(self.name, doing, key, f"{type(error).__name__}: {error}", is_absent=code in _ABSENT)


class SignedBucket:
    """A bucket accessed by the agents' client; any thread may call it.

    Args:
        endpoint: http or https; its path, if any, precedes the bucket.
        environment: variables with the key pair, and optionally AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION,
            and AWS_CA_BUNDLE.

    Raises: ConfigurationError for an invalid endpoint.
    """

    def __init__(self, name: str, *, endpoint: str, environment: Mapping[str, str]) -> None:
        keys = Credentials(
            access_key_id=environment[_KEY_VARIABLES[0]], secret_access_key=environment[_KEY_VARIABLES[1]]
        )
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
        self.name = name
        try:
            self._store = ObjectStore(
                Endpoint(url=endpoint, region=region, credentials=keys),
                timeout_s=_TIMEOUT_S,
                session_token=environment.get("AWS_SESSION_TOKEN", ""),
                authorities=environment.get("AWS_CA_BUNDLE", ""),
            )
        except (ContractError, ValueError):
            said = endpoint.rpartition("@")[2]  # the omitted part may contain a password
            raise ConfigurationError(f"the endpoint of S3 is {said!r}; expected http://host:port") from None

    def close(self) -> None:
        """Cancel running reads and close all connections."""
        self._store.close()

    def list(self, prefix: str, after: str = "") -> Listing:
        """Return the objects and folders at a prefix. Raises: StoreError."""
        try:
            return self._store.list_folder(self.name, prefix, after=after)
        except ObjectStoreError as error:
            raise _failure(self.name, "list", prefix, str(error)) from error

    def read(self, key: str, start: int, length: int) -> bytes:
        """Return bytes of an object.

        Args: as `Bucket.read`.
        Raises: FileNotFoundError, StoreError.
        """
        try:
            return self._store.get_range(self.name, key, start, length)
        except ObjectStoreError as error:
            is_absent = error.details.get("status") == HTTPStatus.NOT_FOUND
            raise _failure(self.name, "read", key, str(error), is_absent=is_absent) from error


def _failure(bucket: str, doing: str, key: str, said: str, *, is_absent: bool = False) -> OSError:
    place = f"s3://{bucket}/{key}"
    if is_absent and doing == "read":
        return FileNotFoundError(errno.ENOENT, "there is no such object", place)
    return StoreError(f"could not {doing} {place}: {said}")
