"""CloudWatch Logs as clients read training logs: names, tokens, refusals."""

import pytest

from clary.base.errors import StoreError, WireError
from clary.contract.agent_protocol import LogBatch, LogBlock
from clary.control.permissions.grants import Grants
from clary.control.reconcile.log_cleaning import remove_expired_streams
from clary.control.services.call import Call
from clary.control.services.dispatch import dispatch
from clary.control.store.log_files.log_pages import FilteredPage
from clary.control.store.log_files.logs import LogStore
from clary.testing.control_plane import ControlPlane

GROUP = "/aws/sagemaker/TrainingJobs"


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        await plane.create(num_hosts=2)
        await plane.passes()
        yield plane


async def say(plane, *texts, first=0, host="algo-1"):
    at_ms = int(plane.clock.now().timestamp() * 1000)
    lines = tuple(LogBlock(at_ms=at_ms + first + index, text=text) for index, text in enumerate(texts))
    await plane.agent(host=host).send_logs(LogBatch(first_sequence=first, blocks=lines))


async def logs(plane, operation, **params):
    return await plane.call("logs", operation, **{"logGroupName": GROUP, **params})


async def read(plane, **params):
    stream = (await plane.job()).log_streams[0]
    answer = await logs(plane, "GetLogEvents", logStreamName=stream, startFromHead=True, **params)
    return [event["message"] for event in answer["events"]], answer["nextForwardToken"]


async def refused(call):
    with pytest.raises(WireError) as error:
        await call
    return error.value.code


async def test_a_stream_of_every_host_exists_before_the_first_line(plane):
    answer = await logs(plane, "DescribeLogStreams", logStreamNamePrefix="job/")
    epoch = int(plane.clock.now().timestamp())
    assert [stream["logStreamName"] for stream in answer["logStreams"]] == [
        f"job/algo-1-{epoch}",
        f"job/algo-2-{epoch}",
    ]
    assert "nextToken" not in answer
    assert answer["logStreams"][0]["arn"].endswith(f"log-group:{GROUP}:log-stream:job/algo-1-{epoch}")


async def test_a_forward_token_is_stable_without_new_lines_and_then_returns_new_lines(plane):
    texts, token = await read(plane)
    assert texts == []
    await say(plane, "one", "two")
    texts, token = await read(plane, nextToken=token)
    assert texts == ["one", "two"]
    assert await read(plane, nextToken=token) == ([], token)
    await say(plane, "three", first=2)
    texts, newer = await read(plane, nextToken=token)
    assert texts == ["three"]
    assert newer != token


async def test_backward_pages_reach_the_first_line(plane):
    await say(plane, "one", "two", "three")
    stream = (await plane.job()).log_streams[0]
    last = await logs(plane, "GetLogEvents", logStreamName=stream, limit=2)
    assert [event["message"] for event in last["events"]] == ["two", "three"]
    before = await logs(plane, "GetLogEvents", logStreamName=stream, limit=2, nextToken=last["nextBackwardToken"])
    assert [event["message"] for event in before["events"]] == ["one"]


async def test_streams_are_paged_with_a_token_only_if_more_remain(plane):
    first = await logs(plane, "DescribeLogStreams", limit=1)
    second = await logs(plane, "DescribeLogStreams", limit=1, nextToken=first["nextToken"])
    names = [page["logStreams"][0]["logStreamName"].split("-")[1] for page in (first, second)]
    assert names == ["1", "2"]
    assert "nextToken" not in second


async def test_streams_are_sorted_by_their_last_event(plane):
    await say(plane, "early")
    plane.clock.advance(5)
    await say(plane, "late", host="algo-2")
    answer = await logs(plane, "DescribeLogStreams", orderBy="LastEventTime", descending=True)
    assert [stream["logStreamName"].split("-")[1] for stream in answer["logStreams"]] == ["2", "1"]


async def test_filter_merges_hosts_by_time_and_event_ids_are_stable(plane):
    await say(plane, "a 1")
    plane.clock.advance(1)
    await say(plane, "b 2", host="algo-2")
    plane.clock.advance(1)
    await say(plane, "a 3", first=1)
    answer = await logs(plane, "FilterLogEvents", logStreamNamePrefix="job/", interleaved=True)
    assert [event["message"] for event in answer["events"]] == ["a 1", "b 2", "a 3"]
    assert len({event["eventId"] for event in answer["events"]}) == 3
    assert await logs(plane, "FilterLogEvents", logStreamNamePrefix="job/") == answer
    matching = await logs(plane, "FilterLogEvents", filterPattern='"b 2"')
    assert [event["message"] for event in matching["events"]] == ["b 2"]


async def test_filter_continues_from_its_token(plane):
    await say(plane, "one", "two")
    first = await logs(plane, "FilterLogEvents", limit=1)
    second = await logs(plane, "FilterLogEvents", limit=1, nextToken=first["nextToken"])
    assert [page["events"][0]["message"] for page in (first, second)] == ["one", "two"]


async def test_a_missing_group_or_stream_gives_resource_not_found(plane):
    for operation in ("DescribeLogStreams", "FilterLogEvents"):
        assert await refused(logs(plane, operation, logGroupName="/other")) == "ResourceNotFoundException"
    assert await refused(logs(plane, "GetLogEvents", logStreamName="job/none")) == "ResourceNotFoundException"
    stream = (await plane.job()).log_streams[0]
    assert (await logs(plane, "FilterLogEvents", logStreamNames=[stream]))["events"] == [], "it has no line yet"
    with pytest.raises(WireError, match=r"^The specified log stream does not exist\.$") as error:
        await logs(plane, "FilterLogEvents", logStreamNames=[stream, "job/none"])
    assert error.value.code == "ResourceNotFoundException"


async def test_invalid_queries_give_invalid_parameter(plane):
    stream = (await plane.job()).log_streams[0]
    for call in (
        logs(plane, "DescribeLogStreams", orderBy="LastEventTime", logStreamNamePrefix="job/"),
        logs(plane, "GetLogEvents", logStreamName=stream, nextToken="f/forged/s"),
        logs(plane, "FilterLogEvents", filterPattern="{ $.x = 1 }"),
        logs(plane, "FilterLogEvents", logStreamNames=[stream], logStreamNamePrefix="job/"),
        logs(plane, "FilterLogEvents", nextToken="forged"),
    ):
        assert await refused(call) == "InvalidParameterException"


@pytest.mark.parametrize("identifier", [GROUP, f"arn:aws:logs:us-west-2:000000000000:log-group:{GROUP}:*"])
async def test_the_group_may_be_named_by_its_identifier(plane, identifier):
    answer = await plane.call("logs", "DescribeLogStreams", logGroupIdentifier=identifier)
    assert len(answer["logStreams"]) == 2


@pytest.mark.parametrize(
    ("params", "num_groups"),
    [
        ({}, 1),
        ({"logGroupNamePrefix": "/aws"}, 1),
        ({"logGroupNamePrefix": "/x"}, 0),
        ({"logGroupNamePattern": "Tr"}, 1),
        ({"logGroupNamePattern": "tr"}, 0),
        ({"logGroupClass": "STANDARD"}, 1),
        ({"logGroupClass": "INFREQUENT_ACCESS"}, 0),
        ({"logGroupIdentifiers": ["/x", "/aws/sagemaker/TrainingJobs"]}, 1),
        ({"logGroupIdentifiers": ["/x"]}, 0),
        ({"accountIdentifiers": ["000000000000"]}, 1),
        ({"accountIdentifiers": ["123456789012"]}, 0),
    ],
)
async def test_there_is_exactly_one_log_group(plane, params, num_groups):
    assert len((await plane.call("logs", "DescribeLogGroups", **params))["logGroups"]) == num_groups


async def test_the_group_has_both_forms_of_its_arn(plane):
    (group,) = (await plane.call("logs", "DescribeLogGroups"))["logGroups"]
    assert group["logGroupArn"] == f"arn:aws:logs:us-west-2:000000000000:log-group:{GROUP}"
    assert group["arn"] == group["logGroupArn"] + ":*"
    assert group["metricFilterCount"] == 0


async def in_days(plane, days):
    """Advance the clock by days, without a pass of the reconciler."""
    plane.clock.advance(days * 86_400)


async def retention_of(plane):
    answer = await plane.call("logs", "DescribeLogGroups")
    return answer["logGroups"][0].get("retentionInDays")


async def test_without_a_policy_lines_are_kept_forever(plane):
    await say(plane, "old")
    await in_days(plane, 10_000)
    assert await retention_of(plane) is None
    assert await remove_expired_streams(plane.logs, plane.hub) == 0
    assert (await read(plane))[0] == ["old"]


async def test_a_policy_hides_older_lines_in_every_operation(plane):
    await logs(plane, "PutRetentionPolicy", retentionInDays=7)
    assert await retention_of(plane) == 7
    await say(plane, "old")
    await in_days(plane, 5)
    await say(plane, "young", first=1)
    assert (await read(plane))[0] == ["old", "young"]
    first = await logs(plane, "FilterLogEvents", limit=1)
    assert [event["message"] for event in first["events"]] == ["old"]
    await in_days(plane, 3)
    assert (await read(plane))[0] == ["young"]
    assert (await read(plane, startTime=0))[0] == ["young"]
    rest = await logs(plane, "FilterLogEvents", limit=1, nextToken=first["nextToken"])
    assert [event["message"] for event in rest["events"]] == ["young"]
    await logs(plane, "DeleteRetentionPolicy")
    assert await retention_of(plane) is None
    assert (await read(plane))[0] == ["old", "young"], "nothing was removed yet: the stream has a younger line"


async def test_streams_are_removed_when_all_lines_have_expired_and_the_job_has_ended(plane):
    await logs(plane, "PutRetentionPolicy", retentionInDays=1)
    await say(plane, "old")
    await in_days(plane, 2)
    assert await remove_expired_streams(plane.logs, plane.hub) == 0
    await say(plane, "still taken", first=1)
    assert (await read(plane))[0] == ["still taken"]
    over = (await plane.job()).log_streams
    plane.hub.live_job = lambda _name: None
    await in_days(plane, 2)
    assert await remove_expired_streams(plane.logs, plane.hub) == len(over) == 2
    assert await refused(logs(plane, "GetLogEvents", logStreamName=over[0])) == "ResourceNotFoundException"


async def test_a_policy_outlives_the_service_and_overrides_its_setting(tmp_path):
    for made_with, put, days in ((30, None, 30), (0, 3, 3), (30, 3, 3)):
        store = LogStore(tmp_path, retention_days=made_with)
        if put is not None:
            await store.set_retention(put)
        assert await store.retention_days() == days
        await store.close()
    store = LogStore(tmp_path, retention_days=30)
    assert await store.retention_days() == 3
    await store.set_retention(None)
    assert await store.retention_days() == 30
    await store.close()


async def test_an_unreadable_policy_removes_no_lines(tmp_path):
    (tmp_path / "retention.json").write_text("{}")
    store = LogStore(tmp_path, retention_days=1)
    with pytest.raises(StoreError, match="cannot read the retention policy"):
        await store.remove_expired(lambda _name: False)
    await store.close()


@pytest.mark.parametrize("days", [0, 2, 4000])
async def test_only_the_retention_periods_of_aws_are_accepted(plane, days):
    assert await refused(logs(plane, "PutRetentionPolicy", retentionInDays=days)) == "InvalidParameterException"
    assert await retention_of(plane) is None


async def test_another_log_group_can_have_no_policy(plane):
    for operation, more in (("PutRetentionPolicy", {"retentionInDays": 1}), ("DeleteRetentionPolicy", {})):
        other = plane.call("logs", operation, logGroupName="/other", **more)
        assert await refused(other) == "ResourceNotFoundException"


async def test_a_job_has_one_search_at_once(plane, monkeypatch):
    clients = []

    async def search(**params):
        clients.append(params["client"])
        return FilteredPage(events=(), next_token=None)

    monkeypatch.setattr(plane.logs, "filter_events", search)
    for grants in (None, Grants(job_name="job", job_arn="arn", job_id="id")):
        params = {"logGroupName": GROUP, "logStreamNamePrefix": "job/"}
        asked = Call(
            services=plane.services, params=params, region="r", access_key_id="K", request_id="R", grants=grants
        )
        assert (await dispatch("logs", "FilterLogEvents", asked))["events"] == []
    assert clients == ["", "id"]
