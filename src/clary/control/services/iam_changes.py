"""IAM operations that change a role or a policy: they succeed for the owner, and have no effect.

Where: scripts set up the execution role before their first job. Every role exists and permits everything here, so that
there is nothing to change; the service's log says so at the first call of each operation. Operations whose only purpose
is to permit less, such as PutRolePermissionsBoundary, are not answered. A job's key may call none of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

from clary.control.services.call import Call, Handler

_log = logging.getLogger(__name__)


def without_effect(operation: str) -> Handler:
    """Return the handler of an operation that returns nothing and has no effect."""

    async def handle(call: Call) -> Mapping[str, Any]:
        del call
        say_without_effect(operation)
        return {}

    return handle


@cache
def say_without_effect(operation: str) -> None:
    """Tell the service's log, once for each operation, that its calls have no effect."""
    _log.info("iam:%s has no effect: every role exists here and permits everything", operation)
