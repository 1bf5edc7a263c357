"""ECR operations, for scripts that log in to a registry before they start a job.

There is no registry here: images are names (`engines.images`), and no image is pulled. The token permits nothing, as
its password states.
Source: GetAuthorizationToken (Amazon ECR API reference): base64 of user and password, valid for twelve hours.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from clary.control.services.call import Call

VALID = timedelta(hours=12)
LOGIN = b"AWS:there-is-no-registry-here"


async def get_authorization_token(call: Call) -> Mapping[str, Any]:
    """Return a token for each named registry, or else for the account's own."""
    accounts = call.params.get("registryIds") or [call.services.settings.account_id]
    expires_at = call.services.clock.now() + VALID
    return {
        "authorizationData": [
            {
                "authorizationToken": base64.b64encode(LOGIN).decode(),
                "expiresAt": expires_at,
                "proxyEndpoint": f"https://{account}.dkr.ecr.{call.region}.amazonaws.com",
            }
            for account in accounts
        ]
    }
