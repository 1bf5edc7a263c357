"""CloudWatch Logs Insights queries by unmodified boto3: on a real job's logs, and from inside a job on its own."""

import time

import pytest
from boto3_clients import GROUP, job_request, log_of, unique, wait
from botocore.exceptions import ClientError
from program_jobs import run, script_request

pytestmark = [pytest.mark.clients, pytest.mark.timeout(180), pytest.mark.xdist_group("clients-log-queries")]

PROGRAM = """
import time, boto3
print("INFO step 1 loss=0.9")
print("ERROR no space left")
print('{"step": 2, "loss": 0.5}', flush=True)
logs = boto3.client("logs")
group, text = "/aws/sagemaker/TrainingJobs", "stats count(*) by @logStream"
seen, begun_s = set(), int(time.time())
while not seen and time.time() < begun_s + 60:  # until the first lines are stored
    times = {"startTime": begun_s - 3600, "endTime": begun_s + 3600}
    query = logs.start_query(logGroupName=group, queryString=text, **times)["queryId"]
    while (answer := logs.get_query_results(queryId=query))["status"] in ("Scheduled", "Running"):
        time.sleep(0.05)
    seen = {row[0]["value"].split("/")[0] for row in answer["results"]}
print("seen:", sorted(seen))
"""


@pytest.fixture(scope="module")
def job(aws):
    """A job that has printed its lines; another job exists too."""
    other = unique("insights-other")
    aws.sagemaker.create_training_job(**job_request(other, "echo ERROR of another"))
    wait(aws, other)
    name = unique("insights")
    request = script_request(aws, name, {"train.py": PROGRAM})
    request["AlgorithmSpecification"]["TrainingImage"] = "team/remote:1"  # its environment has boto3
    facts = run(aws, request)
    assert facts["TrainingJobStatus"] == "Completed", (facts, log_of(aws, name))
    return name


def ask(aws, text, **more):
    now_s = int(time.time())
    times = {"startTime": now_s - 3600, "endTime": now_s}
    query = aws.logs.start_query(**{"logGroupName": GROUP, **times, "queryString": text, **more})["queryId"]
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        answer = aws.logs.get_query_results(queryId=query)
        if answer["status"] not in ("Scheduled", "Running"):
            assert answer["status"] == "Complete"
            return [{cell["field"]: cell["value"] for cell in row} for row in answer["results"]]
        time.sleep(0.05)
    raise AssertionError(f"{query} did not end: {answer}")


def test_boto3_finds_lines_of_a_job(aws, job):
    rows = ask(
        aws,
        f"fields @timestamp, @message, @logStream | filter @logStream like /^{job}\\// "
        "| filter @message like /(?i)error|loss/ | sort @timestamp asc | limit 20",
    )
    assert [row["@message"] for row in rows] == [
        "INFO step 1 loss=0.9",
        "ERROR no space left",
        '{"step": 2, "loss": 0.5}',
    ]
    assert {row["@logStream"].split("/")[0] for row in rows} == {job}
    [row] = ask(aws, f"filter @logStream like '{job}/' and loss < 1 | stats count(*) as n, max(step) by bin(1d)")
    assert (row["n"], row["max(step)"]) == ("1", "2")


def test_a_query_from_inside_a_job_sees_only_its_own_lines(aws, job):
    rows = ask(aws, f"filter @logStream like '{job}/' and @message like /^seen:/ | fields @message | limit 1")
    assert rows[0]["@message"] == f"seen: ['{job}']"


def test_the_error_of_a_malformed_query_gives_the_position(aws, job):
    with pytest.raises(aws.logs.exceptions.MalformedQueryException) as refused:
        ask(aws, "fields @message | parse @message '*' as a")
    assert refused.value.response["queryCompileError"]["location"] == {"startCharOffset": 18, "endCharOffset": 23}
    assert "'parse' is not offered" in str(refused.value)
    with pytest.raises(aws.logs.exceptions.ResourceNotFoundException):
        ask(aws, "limit 1", logGroupName="/other")
    with pytest.raises(aws.logs.exceptions.ResourceNotFoundException):
        aws.logs.get_query_results(queryId="none")


def test_boto3_lists_and_stops_queries(aws, job):
    ask(aws, "fields @message | limit 1")
    queries = aws.logs.describe_queries(logGroupName=GROUP, status="Complete", maxResults=1)["queries"]
    assert queries[0]["queryString"] == "fields @message | limit 1"
    with pytest.raises(ClientError, match="is not running"):
        aws.logs.stop_query(queryId=queries[0]["queryId"])


def test_a_runaway_regular_expression_delays_no_other_request(aws, job):
    begun = time.monotonic()
    assert ask(aws, f"filter @logStream like '{job}/' and @message like /(\\w+\\s*)+$x/") == []
    aws.sagemaker.list_training_jobs(MaxResults=1)
    assert time.monotonic() - begun < 10
