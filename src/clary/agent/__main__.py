"""The agent of one host: `python -m clary.agent --service URL --job J --attempt N --host algo-1`.

Where: an engine starts one for each host of an attempt, with the attempt's bearer token in `CLARY_AGENT_TOKEN`. It ends
with 0 when it was released or the attempt is over, 143 after SIGTERM, 1 when it could not do its work, 2 for a wrong
command line.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from clary.agent.service_client import AgentAddress, ServiceClient
from clary.agent.supervisor.steps import Steps
from clary.agent.supervisor.supervisor import Supervisor
from clary.contract.launch_plan import LaunchPlan

TOKEN_VARIABLE = "CLARY_AGENT_TOKEN"  # noqa: S105 - a variable's name


def main(arguments: list[str] | None = None) -> int:
    """Run the agent and return its exit code."""
    # First of all: nothing that the agent starts may inherit the token.
    token = os.environ.pop(TOKEN_VARIABLE, "")
    parser = argparse.ArgumentParser(prog="python -m clary.agent", description="Run one host of one attempt of a job.")
    parser.add_argument("--service", required=True, help="URL of the service")
    parser.add_argument("--job", required=True, help="name of the training job")
    parser.add_argument("--attempt", required=True, type=int, help="number of the attempt")
    parser.add_argument("--host", required=True, help="name of the host, for example algo-1")
    options = parser.parse_args(arguments)
    if not token:
        parser.error(f"the environment variable {TOKEN_VARIABLE} must hold the attempt's token")
    address = AgentAddress(service_url=options.service, job=options.job, attempt=options.attempt, host=options.host)
    supervisor = Supervisor(ServiceClient(address, token=token), host=options.host, make_steps=make_steps)
    signal.signal(signal.SIGTERM, lambda *_: supervisor.terminate())
    signal.signal(signal.SIGINT, lambda *_: supervisor.terminate())
    return supervisor.run()


def make_steps(plan: LaunchPlan, host: str) -> Steps:
    """Return the work of a host."""
    # Imported here because it takes as long as everything before it: the first report does not wait for it.
    from clary.agent.supervisor.wiring import HostSteps

    return HostSteps(plan, host)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a step that could not be broken off may hold a thread that the interpreter would wait for.
    os._exit(code)
