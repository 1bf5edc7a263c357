"""Fixtures of the integration tests: one service for a session, and client scripts run against it."""

import shutil
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from boto3_clients import Clients
from running_service import CLIENT_TIMEOUT_S, CLIENTS, start_service

from needs import require_python


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    """One service for all tests of a session; at its end `clary doctor` must find no leftovers."""
    home = tmp_path_factory.mktemp("clary")
    running = start_service(home)
    yield running
    running.clary("down")
    leftovers = running.clary("doctor", check=False).stdout
    assert "left behind" not in leftovers, leftovers
    shutil.rmtree(home, ignore_errors=True)


class ClientRuns:
    """Runs client scripts concurrently, since they mostly sleep between polls."""

    def __init__(self, service):
        self._service = service
        self._pool = ThreadPoolExecutor(max_workers=4)
        self._futures: dict[tuple, Future] = {}

    def start(self, python, script, *arguments):
        """Start a run unless it has been started before."""
        require_python(python)
        key = (script, *arguments)
        if key not in self._futures:
            self._futures[key] = self._pool.submit(self._service.run_client, python, script, *arguments)

    def result(self, script, *arguments):
        """Wait for a run; return its output and facts."""
        return self._futures[script, *arguments].result(timeout=CLIENT_TIMEOUT_S)

    def close(self):
        """Wait for running calls, and drop the queued ones."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@pytest.fixture(scope="session")
def client_runs(service, leftover_owners):
    """Client scripts of the session."""
    runs = ClientRuns(service)
    leftover_owners.excuse(f"{CLIENTS}/", "scripts that one test starts run beside the tests until another wants them")
    yield runs
    runs.close()
    leftover_owners.withdraw(f"{CLIENTS}/")


@pytest.fixture(scope="session")
def aws(service):
    """boto3 clients of the session's service."""
    return Clients(service)
