"""The agent of one host: `python -m clary.agent --service URL --pool P --job J --attempt N --host algo-1`.

Where: an engine starts one agent for each host of an attempt. The host belongs to a pool, whose bearer token is in
`CLARY_POOL_TOKEN`; the token of the pool's first attempt is in `CLARY_AGENT_TOKEN`. The agent exits with 0 after a
release, after the end of the pool, or if the service is silent too long between attempts; with 143 after a signal, 1
after a failure of its own, 2 for a wrong command line.

A signal announces that the host will be taken back: the agent reports this to the service, which stops the whole gang.
The agent exits once the gang has stopped (`supervisor.notice_period`).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from functools import cache
from typing import TYPE_CHECKING

from clary.agent.node_view import NodeView, read_node_view
from clary.agent.service_client import AgentAddress, PoolAddress, PoolClient, ServiceClient
from clary.agent.supervisor.pool_agent import PoolAgent
from clary.agent.supervisor.steps import Steps
from clary.agent.supervisor.supervisor import Supervisor
from clary.contract.agent_protocol import PoolAssignment
from clary.contract.launch_plan import LaunchPlan

if TYPE_CHECKING:
    from clary.agent.supervisor.standby_keeping import StandbyKeeper

# Variables with the bearer tokens of the first attempt and of the pool.
TOKEN_VARIABLES = ("CLARY_AGENT_TOKEN", "CLARY_POOL_TOKEN")
# Signals by which schedulers announce that they take a host back; Slurm sends SIGUSR1 for its option --signal.
NOTICE_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


def main(arguments: list[str] | None = None) -> int:
    """Run the agent and return its exit code."""
    # Before anything else: no process that the agent starts may inherit a token.
    token, pool_token = (os.environ.pop(name, "") for name in TOKEN_VARIABLES)
    parser = argparse.ArgumentParser(prog="python -m clary.agent", description="Run one host of a pool.")
    parser.add_argument("--service", required=True, help="URL of the service")
    parser.add_argument("--pool", required=True, help="pool that the host belongs to")
    parser.add_argument("--job", required=True, help="name of the training job to begin with")
    parser.add_argument("--attempt", type=int, required=True, help="number of its attempt")
    parser.add_argument("--own-mounts", action="store_true", help="what it mounts for the host ends with it")
    parser.add_argument(
        "--node", default="", help="file of what this node has, where the service runs on another machine"
    )
    parser.add_argument("--host", required=True, help="name of the host, for example algo-1")
    options = parser.parse_args(arguments)
    if not (token and pool_token):
        parser.error(f"the environment variables {' and '.join(TOKEN_VARIABLES)} must hold the agent's tokens")
    if options.own_mounts:
        # imported late: saves 1 ms if the option is not given
        from clary.agent.host.mounts.own_disk import enter_own_mounts

        enter_own_mounts()  # before a second thread starts, which would keep the old mounts
    first = PoolAssignment(job=options.job, attempt=options.attempt, token=token)
    node = read_node_view(options.node) if options.node else None
    agent = _pool_agent(options.service, options.pool, options.host, pool_token, first, node)
    for number in NOTICE_SIGNALS:
        signal.signal(number, lambda number, _: agent.terminate(signal.Signals(number).name))
    # SIGHUP, sent when a terminal or connection closes, is no notice. A handler, not SIG_IGN: every executed program
    # would inherit SIG_IGN.
    signal.signal(signal.SIGHUP, lambda *_: None)
    return agent.run()


def _pool_agent(
    service: str, pool: str, host: str, token: str, first: PoolAssignment, node: NodeView | None
) -> PoolAgent:
    @cache
    def standby() -> StandbyKeeper:
        # Imported late: saves 11 ms before the first report. The late import in `make_steps` saves 112 ms, as much as
        # all other work before that report.
        from clary.agent.supervisor.standby_keeping import StandbyKeeper

        return StandbyKeeper(host)

    def make_steps(plan: LaunchPlan, host: str) -> Steps:
        from clary.agent.supervisor.wiring import HostSteps  # imported late: saves 112 ms before the first report

        return HostSteps(plan, host, standby=standby() if plan.shares_hosts else None)

    def make_attempt(assignment: PoolAssignment) -> Supervisor:
        address = AgentAddress(service_url=service, job=assignment.job, attempt=assignment.attempt, host=host)
        client = ServiceClient(address, token=assignment.token, seen=node.seen if node is not None else None)
        return Supervisor(client, host=host, make_steps=make_steps)

    client = PoolClient(PoolAddress(service_url=service, pool=pool, host=host), token=token)
    return PoolAgent(first, client, make_attempt=make_attempt, between=standby)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit, which waits for all threads: a step that could not be aborted may still run one.
    os._exit(code)
