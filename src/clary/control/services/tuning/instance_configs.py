"""The choice among the InstanceConfigs of a tuning job: the first one that can ever run here.

Where: `tuning_calls` checks a new tuning job's training jobs with it, and `trial_starts` stores trials with it, so that
the request of a trial names the chosen type and count.
Source: HyperParameterTuningResourceConfig, AllocationStrategy Prioritized (AWS API reference).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from clary.base.errors import WireError
from clary.control.services.call import Call

CAN_NEVER_RUN = "ResourceLimitExceeded"  # code of a refusal because the service can never have such hosts


async def act_on_first(
    call: Call, requests: Iterable[Mapping[str, Any]], act: Callable[[Call], Awaitable[object]]
) -> None:
    """Act on the first of several requests whose hosts the service can have.

    Args:
        call: its parameters are replaced by those of a request.
        requests: at least one, in order of preference.
        act: refuses a request for other hosts than the service can have with ResourceLimitExceeded, and does nothing.
    Raises: WireError: the refusal of the first request if all are refused; the first refusal for another reason.
    """
    refusal: WireError | None = None
    for request in requests:
        try:
            await act(replace(call, params=request))
        except WireError as error:
            if error.code != CAN_NEVER_RUN:
                raise
            refusal = refusal or error
        else:
            return
    assert refusal is not None, "there is at least one request"
    raise refusal
