"""The policy on targets that programs may reach, from the service's settings, environment and ports.

Where: `service` makes the policy at its start. Its users are the proxy, the engine's outlets, the notes of `describe`,
and the client of public buckets, which `core` makes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from urllib.parse import urlsplit

from clary.contract.launch_plan import Endpoint
from clary.control.egress.addresses import Address, plain
from clary.control.egress.checked_resolver import CheckedResolver
from clary.control.egress.entries import parse_entry
from clary.control.egress.package_indexes import index_entries
from clary.control.egress.policy import EgressPolicy
from clary.control.egress.public_names import AWS_URL
from clary.control.egress.resolver import addresses_of
from clary.control.objects.public.public_store import PublicBuckets
from clary.control.objects.weed_process import GRPC_OFFSET, StoreRecord
from clary.control.server.ports import Ports
from clary.control.settings import Settings
from clary.control.state_folder import StateFolder

_DEFAULT_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "postgres": 5432, "mysql": 3306, "mariadb": 3306}

log = logging.getLogger(__name__)


def egress_policy(
    settings: Settings, folder: StateFolder, environ: Mapping[str, str], *, ports: Ports, object_store: Endpoint
) -> EgressPolicy:
    """Return the policy of this service; blocks while it resolves the names of its own servers.

    Args:
        settings: `internet`, `reachable_networks`, and the addresses of its servers.
        folder: records the ports of the embedded store.
        environ: environment of the service, which may name package indexes.
        ports: ports on which the service listens.
        object_store: endpoint of the object store.
    """
    own_ports = {ports.api, ports.tls, ports.proxy} - {None}
    record = None if settings.s3_endpoint_url else StoreRecord.read(folder.root / "run" / "seaweed.json")
    if record is not None:
        own_ports |= {port + offset for port in record.ports.values() for offset in (0, GRPC_OFFSET)}
    named = tuple(parse_entry(text) for text in settings.reachable_networks)
    indexes = index_entries(environ)
    if indexes:
        log.info("programs may reach package indexes that are set up here: %s", ", ".join(map(str, indexes)))
    return EgressPolicy(
        has_internet=settings.internet,
        reachable=tuple(dict.fromkeys((*named, *indexes))),
        own_ports=frozenset(port for port in own_ports if port is not None),
        own_places=frozenset((*_places(object_store.url), *_places(settings.database_url))),
    )


def public_buckets(settings: Settings, policy: EgressPolicy) -> PublicBuckets:
    """Return the client of public buckets of AWS, which reads no bucket without setting `internet`.

    Args:
        settings: `internet`, `public_buckets` and `public_buckets_url`.
        policy: addresses that AWS's names may have; a mirror that the owner names may have any address.
    """
    if not settings.internet:
        return PublicBuckets(())
    is_aws = settings.public_buckets_url.rstrip("/") == AWS_URL
    resolver = CheckedResolver(policy, client="public buckets") if is_aws else None
    return PublicBuckets(settings.public_buckets, resolver=resolver, url=settings.public_buckets_url)


def _places(url: str) -> set[tuple[Address, int]]:
    """Return the addresses and the port of a server that the service uses; empty for a file or unknown host."""
    parts = urlsplit(url)
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme.partition("+")[0])
    if not parts.hostname or port is None:
        return set()
    try:
        return {(plain(text), port) for text in addresses_of(parts.hostname, port)}
    except (OSError, UnicodeError) as error:
        log.warning("%s cannot be resolved, so programs may reach its address: %s", parts.hostname, error)
        return set()
