"""The page that explains why a job failed."""

from dataclasses import replace

import pytest
from own_pages import FewParts
from server_parts import START_MS, FakeServices, document, request, running_job

from clary.contract.agent_protocol import LogBlock
from clary.control.jobs.training_job import JobFailure
from clary.control.store.log_files.logs import LogStore

WHY = "/clary/v1/jobs/job-1/why"
SAID = [
    (1, "Traceback (most recent call last):"),
    (0, "I am the other rank"),
    (1, '  File "/opt/ml/code/train.py", line 3, in <module>'),
    (1, "    import tokenizer_kit"),
    (1, "ModuleNotFoundError: No module named 'tokenizer_kit'"),
]


@pytest.fixture
async def logs(tmp_path):
    logs = LogStore(tmp_path / "logs")
    yield logs
    await logs.close()


async def why(job, logs=None):
    return document(await FewParts(FakeServices([job], (), logs)).handle(request(WHY)))


async def test_a_failure_is_explained_with_the_last_lines_of_its_rank_and_a_hint(logs):
    message = "rank 1: ModuleNotFoundError: No module named 'tokenizer_kit'"
    failure = JobFailure(fault="algorithm", message=message, host="algo-2", rank=1, exit_code=1, verdict="user")
    job = replace(running_job(), failure=failure)
    stream = job.log_streams[1]
    await logs.create_stream(stream, job.created_at)
    blocks = [LogBlock(at_ms=START_MS + number, rank=rank, text=text) for number, (rank, text) in enumerate(SAID)]
    await logs.append(stream, 0, blocks)
    found = await why(job, logs)
    assert found["lines_of"] == "algo-2, rank 1"
    assert found["category"] == "your program"
    assert found["traceback"] == [text for rank, text in SAID if rank == 1] == found["last_lines"]
    assert "add tokenizer_kit to requirements.txt" in found["hint"]


async def test_a_failure_before_any_line_has_no_lines(logs):
    job = replace(running_job(), log_streams=(), failure=JobFailure(fault="capacity", message="no hosts"))
    found = await why(job, logs)
    assert (found["traceback"], found["last_lines"], found["lines_of"]) == ([], [], "")


async def test_a_job_that_has_not_failed_has_no_cause(logs):
    assert (await why(running_job(), logs))["cause"] is None
