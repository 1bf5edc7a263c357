"""Resolver of the service's own connections to the internet: addresses that programs may not reach stay out of reach.

Where: `server.public_site` gives it to the client of public buckets. A name of AWS that leads to this machine or into
the owner's network, by a forged answer of DNS or by a mirror in /etc/hosts, is refused as the proxy refuses it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from clary.control.egress import own_addresses
from clary.control.egress.policy import EgressPolicy
from clary.control.egress.resolver import Resolver

TIMEOUT_S = 5.0


class CheckedResolver(AbstractResolver):
    """Resolves names to addresses that the policy allows.

    Args:
        policy: allowed targets.
        client: whose threads are used, one name for all questions of this resolver.
    """

    def __init__(self, policy: EgressPolicy, *, client: str) -> None:
        self._policy = policy
        self._client = client
        self._resolver = Resolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a name, best first.

        Args:
            host: name.
            port: port of the connection.
            family: ignored: addresses of both families are returned.
        Raises: OSError for a name without an address, or with one that the policy does not allow, and after TIMEOUT_S.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                addresses = await self._resolver.resolve(host, port, client=self._client)
        except UnicodeError as error:
            raise OSError(f"{host!r} is not a name") from error
        except TimeoutError:
            raise OSError(f"no answer about the name {host} in {TIMEOUT_S:.0f} s") from None
        decision = self._policy.judge(host.lower(), port, addresses, is_own=own_addresses.is_own)
        if not decision.is_allowed:
            raise OSError(decision.reason)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in decision.addresses
        ]

    async def close(self) -> None:
        """End the threads."""
        self._resolver.close()
