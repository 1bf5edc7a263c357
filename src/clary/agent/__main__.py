"""The agent of one host: `python -m clary.agent --service URL --job J --attempt N --host algo-1`.

Where: an engine starts one for each host of an attempt, with the attempt's bearer token in `CLARY_AGENT_TOKEN`; with
`--pool P` instead of job and attempt, one for each host of a warm pool, with the pool's token. It ends with 0 when it
was released or the attempt, or pool, is over, 143 after SIGTERM, 1 when it could not do its work, 2 for a wrong command
line.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING

from clary.agent.service_client import AgentAddress, PoolAddress, PoolClient, ServiceClient
from clary.agent.supervisor.pool_agent import PoolAgent
from clary.agent.supervisor.steps import MakeSteps, Steps
from clary.agent.supervisor.supervisor import Supervisor
from clary.contract.agent_protocol import PoolAssignment
from clary.contract.launch_plan import LaunchPlan

if TYPE_CHECKING:
    from clary.agent.supervisor.standby_keeping import StandbyKeeper

TOKEN_VARIABLE = "CLARY_AGENT_TOKEN"  # noqa: S105 - a variable's name


def main(arguments: list[str] | None = None) -> int:
    """Run the agent and return its exit code."""
    # First of all: nothing that the agent starts may inherit the token.
    token = os.environ.pop(TOKEN_VARIABLE, "")
    parser = argparse.ArgumentParser(prog="python -m clary.agent", description="Run one host of one attempt of a job.")
    parser.add_argument("--service", required=True, help="URL of the service")
    parser.add_argument("--job", help="name of the training job")
    parser.add_argument("--attempt", type=int, help="number of the attempt")
    parser.add_argument("--pool", help="warm pool whose jobs the host serves one after the other")
    parser.add_argument("--own-mounts", action="store_true", help="what it mounts for the host ends with it")
    parser.add_argument("--host", required=True, help="name of the host, for example algo-1")
    options = parser.parse_args(arguments)
    if not token:
        parser.error(f"the environment variable {TOKEN_VARIABLE} must hold the attempt's token")
    if (options.pool is None) == (options.job is None) or (options.job is None) != (options.attempt is None):
        parser.error("name either a job and its attempt (--job, --attempt) or a pool (--pool)")
    if options.own_mounts:
        from clary.agent.host.mounts.own_disk import enter_own_mounts

        enter_own_mounts()  # before there is a second thread, which would stay behind
    life = (
        _supervisor(options.service, options.job, options.attempt, options.host, token)
        if options.pool is None
        else _pool_agent(options.service, options.pool, options.host, token)
    )
    signal.signal(signal.SIGTERM, lambda *_: life.terminate())
    signal.signal(signal.SIGINT, lambda *_: life.terminate())
    return life.run()


def make_steps(plan: LaunchPlan, host: str) -> Steps:
    """Return the work of a host."""
    # Imported here because it takes as long as everything before it: the first report does not wait for it.
    from clary.agent.supervisor.wiring import HostSteps

    return HostSteps(plan, host)


def _supervisor(
    service: str, job: str, attempt: int, host: str, token: str, make_steps: MakeSteps = make_steps
) -> Supervisor:
    address = AgentAddress(service_url=service, job=job, attempt=attempt, host=host)
    return Supervisor(ServiceClient(address, token=token), host=host, make_steps=make_steps)


def _pool_agent(service: str, pool: str, host: str, token: str) -> PoolAgent:
    @cache
    def standby() -> StandbyKeeper:
        # Imported here as in `make_steps`: the first question to the service does not wait for it.
        from clary.agent.supervisor.standby_keeping import StandbyKeeper

        return StandbyKeeper(host)

    def make_attempt(assignment: PoolAssignment) -> Supervisor:
        def make(plan: LaunchPlan, host: str) -> Steps:
            from clary.agent.supervisor.wiring import HostSteps

            return HostSteps(plan, host, standby=standby())

        return _supervisor(service, assignment.job, assignment.attempt, host, assignment.token, make)

    threading.Thread(target=_load_steps, name="load-steps", daemon=True).start()
    client = PoolClient(PoolAddress(service_url=service, pool=pool, host=host), token=token)
    return PoolAgent(client, make_attempt=make_attempt, between=standby)


def _load_steps() -> None:
    import clary.agent.supervisor.wiring  # noqa: F401 - needed by every job, and nobody waits for it now


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a step that could not be broken off may hold a thread that the interpreter would wait for.
    os._exit(code)
