"""Variables of the caller's shell that lead clients away from this service, or through a proxy that cannot reach it.

Where: `clary env` unsets the former, says so, and lists the service among the exceptions of the caller's proxies.
Sources: AWS SDKs and Tools Reference Guide, "Service-specific endpoints", "Container credential provider", "Dual-stack
and FIPS endpoints"; botocore, credentials.py; fsspec, "Configuration"; AWS SDK for pandas, "Configuration".

[Note: what stays] Variables that have no effect beside those of `clary env` stay: AWS_ROLE_ARN without a token's file,
AWS_STS_REGIONAL_ENDPOINTS and AWS_SIGV4A_SIGNING_REGION_SET with an address of the caller's own. So do names that
belong to one program, such as MLFLOW_S3_ENDPOINT_URL: their owner may mean another store.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlsplit

# Clients prefer a profile to the keys of the environment, and use the rest beside these keys: a foreign token, or an
# end of their validity that has passed.
UNSET_VARIABLES = (
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_CREDENTIAL_EXPIRATION",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
)
PROXY_VARIABLES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
NO_PROXY_VARIABLES = ("no_proxy", "NO_PROXY")  # Python's clients read the lower-case name first
# Domains of every partition; source: botocore, endpoints.json, dnsSuffix.
AWS_DOMAINS = ("amazonaws.com", "amazonaws.com.cn", "amazonaws.eu", "api.amazonwebservices.com.cn", "api.aws")
_EVERYTHING = "*"
# A name is printed as part of a command, so nothing but these characters may match.
_FOREIGN = (
    (
        "another server",
        re.compile(
            r"AWS_ENDPOINT_URL_[A-Za-z0-9_]+|WR_[A-Za-z0-9_]+_ENDPOINT_URL|FSSPEC_S3(_ENDPOINT_URL|_CLIENT_KWARGS)?"
        ),
    ),
    (
        "AWS's own addresses",
        re.compile(r"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS|AWS_USE_FIPS_ENDPOINT|AWS_USE_DUALSTACK_ENDPOINT"),
    ),
    (
        "other keys",
        re.compile(
            r"AWS_CONTAINER_CREDENTIALS_(FULL|RELATIVE)_URI|AWS_WEB_IDENTITY_TOKEN_FILE|AWS_CREDENTIAL_FILE|"
            r"FSSPEC_S3_(KEY|SECRET|TOKEN|PROFILE)"
        ),
    ),
)


def foreign_variables(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the names of set variables that lead clients elsewhere, sorted, each with where to."""
    found = {}
    for name in sorted(environ):
        for target, pattern in _FOREIGN:
            if pattern.fullmatch(name):
                found[name] = target
    return found


def uses_proxy(environ: Mapping[str, str], *, without: Collection[str] = ()) -> bool:
    """Whether a proxy is set, apart from the named variables."""
    return any(environ.get(name) for name in PROXY_VARIABLES if name not in without)


def exceptions(environ: Mapping[str, str]) -> Sequence[str]:
    """Return the servers that clients reach without a proxy."""
    listed = ",".join(environ.get(name, "") for name in NO_PROXY_VARIABLES).split(",")
    return list(dict.fromkeys(filter(None, (item.strip() for item in listed))))


def exceptions_within_aws(environ: Mapping[str, str]) -> Sequence[str]:
    """Return those of the exceptions that stand for names of AWS, or for everything."""
    return [item for item in exceptions(environ) if _is_within_aws(item)]


def with_service(listed: Sequence[str], url: str) -> Mapping[str, str]:
    """Return the variables that list the service and this machine after other exceptions.

    Args:
        listed: the other exceptions.
        url: URL of the service.
    """
    host = urlsplit(url).hostname or ""
    own = ["localhost", "127.0.0.1", "::1", host, *([f"[{host}]"] if ":" in host else [])]
    return dict.fromkeys(reversed(NO_PROXY_VARIABLES), ",".join(dict.fromkeys((*listed, *filter(None, own)))))


def proxy_exceptions(environ: Mapping[str, str], *, url: str, without: Collection[str] = ()) -> Mapping[str, str]:
    """Return the variables by which clients reach the service without the caller's proxy; empty if there is no proxy.

    Args:
        environ: environment of the caller.
        url: URL of the service.
        without: names of proxies' variables that will be unset.
    """
    listed = exceptions(environ)
    # Many clients know the star only if it stands alone.
    if not uses_proxy(environ, without=without) or listed == [_EVERYTHING]:
        return {}
    return with_service(listed, url)


def _is_within_aws(item: str) -> bool:
    name = item.partition(":")[0].lower().lstrip("*").strip(".")
    if not name:
        return item.startswith(_EVERYTHING)
    return any(f".{domain}".endswith(f".{name}") or f".{name}".endswith(f".{domain}") for domain in AWS_DOMAINS)
