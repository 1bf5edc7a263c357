"""Stacks in a real browser: of ranks that wait for one rank, and of a program that is not Python."""

import pytest
from boto3_clients import Clients, job_request, unique, wait
from console_browser import keep_views, open_job
from playwright.sync_api import expect
from program_jobs import script_request, start

pytest_plugins = ["console_fixtures"]
pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("console-stacks")]

LONG_MS = 150_000  # limit for jobs that run within a test
WAITS = """
import os, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")

def read_samples():
    os.mkfifo("/tmp/samples")
    open("/tmp/samples").read()

for step in range(100_000):
    if step == 5:
        print("step five is there", flush=True)
        if dist.get_rank() == 1:
            read_samples()
    dist.all_reduce(torch.ones(4))
"""


@pytest.fixture(scope="module")
def own_service(service):
    """The shared service; these tests have no special settings."""
    return service


@pytest.fixture
def stopped_later(service):
    """Stop jobs at the end of a test."""
    aws, names = Clients(service), []
    yield aws, names
    for name in names:
        aws.sagemaker.stop_training_job(TrainingJobName=name)
        wait(aws, name)


def take_stacks(page):
    take = page.get_by_role("button", name="Take stacks now")
    expect(take).to_be_enabled(timeout=LONG_MS)
    take.click()


@pytest.mark.long
def test_the_rank_that_others_wait_for_is_named_with_its_source_line(page, console, stopped_later):
    aws, names = stopped_later
    distributed = {"sagemaker_torch_distributed_enabled": "true"}
    request = script_request(aws, unique("waits"), {"train.py": WAITS}, instance_count=2, hyperparameters=distributed)
    names.append(start(aws, request))
    open_job(page, console, names[0], "logs")
    expect(page.get_by_text("step five is there")).to_have_count(2, timeout=LONG_MS)
    open_job(page, console, names[0], "stacks")
    take_stacks(page)
    expect(page.get_by_text("Suspect: rank 1 on algo-2")).to_be_visible(timeout=LONG_MS)
    expect(page.get_by_text("it is held up by a file or disk: read_samples (train.py:9)")).to_be_visible()
    odd = page.get_by_role("region", name="1 rank: ").filter(has_text="Stands out")
    expect(odd).to_contain_text("rank 1 on algo-2")
    expect(odd).to_contain_text("read_samples")
    calls = page.get_by_role("region", name="Last collectives").get_by_role("row")
    expect(calls.filter(has_text="all_reduce #6")).to_contain_text("waited for")
    expect(calls.filter(has_text="all_reduce #5")).to_contain_text("behind")
    keep_views(page, "job-stacks-suspect")


@pytest.mark.long
def test_a_program_without_python_is_listed_with_the_reason_for_no_stacks(page, console, stopped_later):
    aws, names = stopped_later
    names.append(start(aws, job_request(unique("sleeps"), "sleep 600; true")))
    open_job(page, console, names[0], "stacks")
    take_stacks(page)
    expect(page.get_by_role("heading", name="No rank could be looked at")).to_be_visible(timeout=LONG_MS)
    others = page.get_by_role("region", name="Other processes")
    expect(others.get_by_role("row").filter(has_text="sleep 600").last).to_contain_text("sleeping")
    expect(page.get_by_text("no Python runs in it").first).to_be_visible()
    keep_views(page, "job-stacks-other")
