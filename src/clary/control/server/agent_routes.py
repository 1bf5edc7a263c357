"""Handlers for requests of agents and programs: orders, assignments, parts of traces, a status.

Source: contract/agent_protocol.py, which lists the requests of agents; docs/user-guides/trainjob-progress.md of
kubeflow/trainer for the status that programs report themselves: agents give programs the URL and a token
(`agent.environments.variables`); transformers, TRL and the Kubeflow SDK post to that URL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from clary.base.errors import WireError
from clary.base.plain import to_plain
from clary.contract.agent_protocol import Order
from clary.control.jobs.training_job import TrainingJob
from clary.control.reconcile.gateways.agent_gateway import AgentGateway
from clary.control.reconcile.gateways.pool_gateway import PoolGateway
from clary.control.reconcile.gateways.training_gateway import MAX_STATUS_BYTES, TrainingGateway
from clary.control.server.edge.internal_http import bearer_token, json_answer, query_of, read_json
from clary.control.wire.messages import HttpRequest, HttpResponse

MAX_WAIT_S = 30.0
MAX_NUMBERS = 1 << 17  # values in a message of metrics; agents send at most 60,000 (agent.metrics.row_store)
_LONG_NUMBER = re.compile(r"[0-9]{1,15}")


async def next_order(gateway: AgentGateway, job: TrainingJob, host: str, query: Mapping[str, str]) -> Order:
    """Return the next order of a host; waits for it up to the query's `wait_s`. Raises: WireError 400.

    Args:
        gateway: knows the orders.
        job: job of the authorized agent.
        host: host of the agent.
        query: `after`, number of its last order, and `wait_s`, limited to 30 s; both 0 by default.
    """
    try:
        after = int(query.get("after", "0"))
    except ValueError as error:
        raise WireError("ValidationException", f"after and wait_s are numbers: {error}") from error
    return await gateway.next_order(job, host, after=after, wait_s=_wait_s(query))


async def next_assignment(gateway: PoolGateway, pool: str, host: str, request: HttpRequest) -> HttpResponse:
    """Return the attempt that a pool's host serves next, or null; waits like `next_order`.

    Raises: WireError 400, 403, 410.

    Args:
        gateway: knows the job that holds the pool.
        pool: pool of the authorized agent.
        host: host of the agent.
        request: contains the token, and the query `after`, JOB:ATTEMPT of the finished attempt, and `wait_s`.
    """
    query = query_of(request)
    found = await gateway.next_assignment(
        pool, host, after=query.get("after", ""), wait_s=_wait_s(query), token=bearer_token(request)
    )
    return json_answer(None if found is None else to_plain(found))


async def take_trace(gateway: AgentGateway, job: TrainingJob, host: str, request: HttpRequest) -> None:
    """Store a part of a rank's trace. Raises: WireError 400, 404.

    Args:
        gateway: stores the trace.
        job: job of the authorized agent.
        host: host of the agent.
        request: query `number`, `rank`, `offset`, and `last=1` with the last part; the body is the part.
    """
    query = query_of(request)
    numbers = [query.get(name, "") for name in ("number", "rank", "offset")]
    if not all(_LONG_NUMBER.fullmatch(text) for text in numbers):
        raise WireError("ValidationException", f"number, rank and offset are numbers from 0, got {numbers!r:.100}")
    number, rank, offset = map(int, numbers)
    is_last = query.get("last") == "1"
    await gateway.take_trace(job, host, request.body, number=number, rank=rank, offset=offset, is_last=is_last)


async def take_status(gateway: TrainingGateway, job: TrainingJob, host: str, request: HttpRequest) -> None:
    """Store the progress and the metrics that a program reports. Raises: WireError 400, 410, 429.

    Args:
        gateway: stores the status.
        job: job of the authorized program.
        host: host on which the program runs.
        request: its body is JSON of at most `MAX_STATUS_BYTES`.
    """
    if len(request.body) > MAX_STATUS_BYTES:
        raise WireError("ValidationException", f"a status has at most {MAX_STATUS_BYTES} bytes")
    await gateway.take_status(job, host, read_json(request))


def _wait_s(query: Mapping[str, str]) -> float:
    try:
        wait_s = min(float(query.get("wait_s", "0")), MAX_WAIT_S)
        if not math.isfinite(wait_s):
            raise ValueError(f"wait_s is {wait_s}")
    except ValueError as error:
        raise WireError("ValidationException", f"wait_s is a number of seconds: {error}") from error
    return wait_s
