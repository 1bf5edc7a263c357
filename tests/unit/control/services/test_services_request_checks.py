"""Checks at the creation or update of a job, instead of an hour later: buckets, patterns, time, members."""

import json
import time
from dataclasses import replace

import pytest

from clary.base.errors import NOTHING_CHANGED, Fault, ObjectStoreError, StoreError, WireError
from clary.control.services.call import Call
from clary.control.services.dispatch import dispatch
from clary.control.store.job_documents import job_of, row_of
from clary.testing.control_plane import ControlPlane, request_of


@pytest.fixture
async def plane(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane


def with_settings(plane, **values):
    plane.services = replace(plane.services, settings=replace(plane.services.settings, **values))


async def refusal(call):
    with pytest.raises(WireError) as error:
        await call
    return error.value.code, error.value.message


async def test_buckets_of_outputs_are_created_in_the_embedded_store(plane):
    plane.objects.missing = {"results", "checkpoints", "unnamed"}
    await plane.create(
        OutputDataConfig={"S3OutputPath": "s3://results/out"}, CheckpointConfig={"S3Uri": "s3://checkpoints/c"}
    )
    assert plane.objects.missing == {"unnamed"}


async def test_no_job_writes_to_a_page_of_the_embedded_store(plane):
    code, message = await refusal(plane.create(OutputDataConfig={"S3OutputPath": "s3://status/out"}))
    assert (code, "the embedded object store has a page of this name" in message) == ("ValidationException", True)
    with_settings(plane, s3_endpoint_url="http://store.lan:9000")
    await plane.create(OutputDataConfig={"S3OutputPath": "s3://status/out"})


async def test_in_an_external_store_the_buckets_must_exist(plane):
    plane.objects.missing = {"bucket"}
    with_settings(plane, s3_endpoint_url="http://store.lan:9000")
    code, message = await refusal(plane.create())
    assert code == "ValidationException"
    assert message.startswith("Bucket 'bucket', which the job is to write to, does not exist in the object store http:")
    assert plane.objects.missing == {"bucket"}


async def test_a_bucket_that_can_not_be_created_refuses_the_job(plane):
    plane.objects.missing = {"Results"}
    code, message = await refusal(plane.create(OutputDataConfig={"S3OutputPath": "s3://Results/out"}))
    assert code == "ValidationException"
    assert message.startswith("Bucket 'Results', which the job is to write to, does not exist and cannot be made: the")
    assert "answered 400" in message
    assert await plane.store.get_job("job") is None


@pytest.mark.parametrize("bucket", ["a..b", "b", ".hidden"])
async def test_an_invalid_bucket_name_is_not_queried(plane, bucket, monkeypatch):
    monkeypatch.setattr(plane.objects, "has_bucket", None)
    code, message = await refusal(plane.create(OutputDataConfig={"S3OutputPath": f"s3://{bucket}/out"}))
    assert code == "ValidationException"
    assert message.endswith("cannot exist: that is not a valid bucket name.")


PROFILED = {"S3OutputPath": "s3://profiles/p"}


async def update(plane, **members):
    return await plane.call("sagemaker", "UpdateTrainingJob", TrainingJobName="job", **members)


async def test_buckets_that_an_update_names_are_created_or_must_exist(plane):
    await plane.create()
    plane.objects.missing = {"profiles", "reports", "bucket"}
    rule = {"RuleConfigurationName": "r", "RuleEvaluatorImage": "i", "S3OutputPath": "s3://reports/r"}
    rule["RuleParameters"] = {"rule_to_invoke": "ProfilerReport"}
    await update(plane, ProfilerConfig=PROFILED, ProfilerRuleConfigurations=[rule])
    assert plane.objects.missing == {"bucket"}, "those that the job was created with are looked for then"
    with_settings(plane, s3_endpoint_url="http://store.lan:9000")
    plane.objects.missing = {"others"}
    code, message = await refusal(update(plane, ProfilerConfig={"S3OutputPath": "s3://others/p"}))
    assert (code, message[:26]) == ("ValidationException", "Bucket 'others', which the")
    assert (await plane.job()).request["ProfilerConfig"] == PROFILED, "nothing was changed"


@pytest.mark.parametrize(
    "refused", [{"RemoteDebugConfig": {"EnableRemoteDebug": True}}, {"ResourceConfig": {"KeepAlivePeriodInSeconds": 9}}]
)
async def test_a_refused_update_creates_no_bucket(plane, refused):
    await plane.create()
    plane.objects.missing = {"profiles"}
    await refusal(update(plane, ProfilerConfig=PROFILED, **refused))
    await plane.passes()
    await plane.run_to_end()
    await refusal(update(plane, ProfilerConfig=PROFILED))
    assert plane.objects.missing == {"profiles"}


async def test_a_refused_request_creates_no_bucket(plane):
    plane.objects.missing = {"bucket"}
    await refusal(plane.create(RemoteDebugConfig={"EnableRemoteDebug": True}))
    assert plane.objects.missing == {"bucket"}


async def test_a_store_that_does_not_answer_is_not_blamed_on_the_request(plane, monkeypatch):
    async def silent(bucket):
        raise ObjectStoreError("no answer", retryable=True, details={NOTHING_CHANGED: True})

    monkeypatch.setattr(plane.objects, "has_bucket", silent)
    with pytest.raises(WireError) as refused:
        await plane.create()
    assert (refused.value.code, refused.value.message) == ("ServiceUnavailable", "no answer")
    # Otherwise a client that repeats the request at once gets a Throttling instead of the reason.
    assert refused.value.details[NOTHING_CHANGED]


async def test_a_refusal_after_a_bucket_was_made_does_not_say_that_nothing_changed(plane, monkeypatch):
    async def full(*_arguments, **_options):
        raise StoreError("no room", fault=Fault.INFRASTRUCTURE, details={NOTHING_CHANGED: True})

    plane.objects.missing = {"bucket"}
    monkeypatch.setattr(plane.services.hub, "create", full)
    for is_made in (True, False):
        with pytest.raises(WireError, match="no room") as refused:
            await plane.create()
        assert (NOTHING_CHANGED in refused.value.details) != is_made


def metrics(*regexes):
    definitions = [{"Name": f"m{number}", "Regex": regex} for number, regex in enumerate(regexes)]
    return {
        "AlgorithmSpecification": {
            "TrainingImage": "generic:1",
            "ContainerEntrypoint": ["true"],
            "MetricDefinitions": definitions,
        }
    }


@pytest.mark.parametrize(
    ("regex", "words"),
    [
        ("loss=(", "missing ), unterminated subpattern at position 5"),
        ("[0-9", "unterminated character set at position 0"),
        ("*loss", "nothing to repeat at position 0"),
        ("(a{99999999999999999999})", "the repetition number is too large"),
        ("(?<=a+)b([0-9])", "look-behind requires fixed-width pattern"),
    ],
)
async def test_a_pattern_that_does_not_compile_is_refused_with_the_position(plane, regex, words):
    code, message = await refusal(plane.create(**metrics("loss=([0-9]+)", regex)))
    assert code == "ValidationException"
    assert message.startswith(f"Regex of metric definition 'm1' does not compile: {words}")


async def test_a_pattern_with_catastrophic_backtracking_is_warned_of_and_never_matched(plane):
    await plane.create(**metrics(r"(a+)+$([0-9])", r"loss: ([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)", "acc=(.*?);"))
    (sentence,) = (await plane.job()).warnings
    assert sentence.startswith("metric m0: its Regex repeats what repeats")


@pytest.mark.parametrize("regex", ["loss=[0-9.]+", "(?:loss|error)=[0-9.]+", r"loss=\(\d\)", ""])
async def test_a_pattern_without_a_group_is_warned_of(plane, regex):
    await plane.create(**metrics(regex, "(?P<value>[0-9]+)", "loss=([0-9.]+)"))
    (sentence,) = (await plane.job()).warnings
    assert sentence.startswith(f"metric m0: its Regex {regex!r} has no group in parentheses")


async def test_patterns_that_compile_slowly_do_not_block_the_service(plane):
    slow = "(?i)" + "[\\0-\uffff]" * 40 + "([0-9])"
    started = time.monotonic()
    await plane.create(**metrics(*[slow] * 40))
    assert time.monotonic() - started < 10  # all of them together take 20 s and more
    _, message = await refusal(plane.create("other", **metrics(*[slow] * 39, "(")))
    assert message.startswith("Regex of metric definition 'm39' does not compile: missing )")


async def test_more_time_than_the_quota_is_refused_with_the_message_of_sagemaker(plane):
    await plane.create("longest", StoppingCondition={"MaxRuntimeInSeconds": 28 * 86_400})
    code, message = await refusal(plane.create(StoppingCondition={"MaxRuntimeInSeconds": 28 * 86_400 + 1}))
    assert code == "ResourceLimitExceeded"
    assert message.startswith(
        "The account-level service limit 'Longest run time for a training job' is 2419200 Seconds, with current "
        "utilization of 0 Seconds and a request delta of 2419201 Seconds."
    )
    assert message.endswith("On this service the setting max_runtime_s is the limit.")


async def test_an_unknown_type_is_warned_of_with_the_nearest_name(plane):
    await plane.create(ResourceConfig={"InstanceType": "ml.m5.larg", "InstanceCount": 1, "VolumeSizeInGB": 1})
    (sentence,) = (await plane.job()).warnings
    assert sentence.startswith("ml.m5.larg is not in the catalogue (did you mean ml.m5.large?)")


async def test_differences_between_this_machine_and_the_type_are_no_warning(plane):
    await plane.create(
        ResourceConfig={"InstanceType": "ml.c5.18xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1},
        VpcConfig={"Subnets": ["s"], "SecurityGroupIds": ["g"]},
    )
    job = await plane.job()
    assert [sentence.split()[0] for sentence in job.warnings] == ["VpcConfig"]
    assert any(sentence.startswith("ml.c5.18xlarge has 72 CPUs") for sentence in job.emulation)
    await plane.passes()
    plan = (await plane.job()).plan
    assert plan["warnings"] == [*job.warnings, *job.emulation], "the log begins with all of it"


async def test_jobs_of_an_older_release_have_no_emulation_notes(plane):
    await plane.create()
    document = json.loads(row_of(await plane.job())["document"])
    del document["emulation"]
    assert job_of(json.dumps(document)).emulation == ()


async def test_warnings_of_members_are_kept_with_the_job(plane):
    await plane.create(
        SessionChainingConfig={"EnableSessionTagChaining": True}, HyperParameters={"sagemaker_mpi_enable": "1"}
    )
    first, second = (await plane.job()).warnings
    assert first.endswith("did you mean 'sagemaker_mpi_enabled'?")
    assert second.startswith("SessionChainingConfig has no effect")


async def test_a_remote_shell_is_refused_by_create_and_update_and_never_described(plane):
    shell = {"EnableRemoteDebug": True}
    assert (await refusal(plane.create(RemoteDebugConfig=shell)))[0] == "ValidationException"
    await plane.create()
    update = plane.call("sagemaker", "UpdateTrainingJob", TrainingJobName="job", RemoteDebugConfig=shell)
    assert (await refusal(update))[0] == "ValidationException"
    assert "RemoteDebugConfig" not in await plane.describe()


async def test_an_update_adds_its_warnings_once(plane):
    await plane.create()
    profiles = {"ProfilingParameters": {"PythonProfilingConfig": "{}"}}
    for _ in range(2):
        await plane.call("sagemaker", "UpdateTrainingJob", TrainingJobName="job", ProfilerConfig=profiles)
    (sentence,) = (await plane.job()).warnings
    assert sentence.startswith("ProfilerConfig.ProfilingParameters: only DetailedProfilingConfig")


async def test_an_update_warns_like_create_and_removes_warnings_that_it_fixes(plane):
    await plane.create()
    rule = {"RuleConfigurationName": "r", "RuleEvaluatorImage": "a.b/sagemaker-debugger-rules:latest"}
    await update(plane, ProfilerRuleConfigurations=[{**rule, "RuleParameters": {"rule_to_invoke": "Nope"}}])
    (sentence,) = (await plane.job()).warnings
    assert sentence.startswith("profiler rule r: there is no profiler rule 'Nope'")
    window = {"ProfilingParameters": {"DetailedProfilingConfig": "garbage"}}
    await update(plane, ProfilerConfig=window)
    assert any("'garbage' cannot be read" in warning for warning in (await plane.job()).warnings)
    await update(plane, ProfilerRuleConfigurations=[{**rule, "RuleParameters": {"rule_to_invoke": "Dataloader"}}])
    await update(plane, ProfilerConfig={"ProfilingParameters": {}})
    assert (await plane.job()).warnings == ()


async def test_a_record_of_another_release_can_be_updated(plane):
    await plane.create()
    damaged = {**(await plane.job()).request, "DebugRuleConfigurations": [{}], "OfAnotherRelease": 1}
    await plane.hub.update("job", lambda job: replace(job, request=damaged))
    await update(plane, ProfilerConfig={"ProfilingIntervalInMilliseconds": 200})
    assert (await plane.describe("job"))["ProfilerConfig"]["ProfilingIntervalInMilliseconds"] == 200


@pytest.mark.parametrize(("wanted", "checked"), [(True, True), (False, False), (None, True)])
async def test_infra_check_decides_whether_hosts_are_checked(plane, wanted, checked):
    await plane.create(InfraCheckConfig=None if wanted is None else {"EnableInfraCheck": wanted})
    await plane.passes()
    assert (await plane.job()).plan["health_checks"] is checked


async def test_a_job_with_encryption_is_accepted_only_on_a_trusted_machine(plane):
    encrypted = {"OutputDataConfig": {"S3OutputPath": "s3://bucket/out", "KmsKeyId": "alias/key"}}
    code, message = await refusal(plane.create(**encrypted))
    assert code == "ValidationException"
    assert "machine_is_trusted = true" in message
    with_settings(plane, machine_is_trusted=True)
    await plane.create(**encrypted)
    (sentence,) = (await plane.job()).warnings
    assert sentence.startswith("OutputDataConfig.KmsKeyId has no effect")
    assert (await plane.describe())["OutputDataConfig"]["KmsKeyId"] == "alias/key"


CODE = {"sagemaker_program": "train.py", "sagemaker_submit_directory": "s3://code/source.tar.gz"}
OF_IMAGE = {"TrainingImage": "generic:1", "TrainingInputMode": "File"}


async def test_missing_code_objects_are_warned_of(plane):
    own = {"rule_to_invoke": "Mine", "source_s3_uri": "s3://rules/mine.py"}
    rule = {"RuleConfigurationName": "r", "RuleEvaluatorImage": "a.b/sagemaker-debugger-rules:latest"}
    asked = {"HyperParameters": CODE, "DebugRuleConfigurations": [{**rule, "RuleParameters": own}]}
    await plane.create("fine", AlgorithmSpecification=OF_IMAGE, **asked)
    assert (await plane.job("fine")).warnings == ()
    plane.objects.missing = {"code", "rules"}
    await plane.create(AlgorithmSpecification=OF_IMAGE, **asked)
    assert (await plane.job()).warnings == (
        "hyperparameter sagemaker_submit_directory: there is no object s3://code/source.tar.gz; the job fails unless "
        "it is there when its hosts start",
        "rule r: source_s3_uri: there is no object s3://rules/mine.py; the rule ends in Error unless it is there when "
        "its program runs",
    )


@pytest.mark.parametrize("source", ["/opt/ml/input/data/code", "file:///opt/ml/code", ""])
async def test_code_that_is_not_in_s3_is_not_looked_up(plane, source, monkeypatch):
    monkeypatch.setattr(plane.objects, "has_objects", None)
    await plane.create(AlgorithmSpecification=OF_IMAGE, HyperParameters={**CODE, "sagemaker_submit_directory": source})
    await plane.create("with-a-command", HyperParameters=CODE)


async def test_refusals_name_nodes_where_hosts_are_other_machines(plane):
    with_settings(plane, engine="boxes")
    _, message = await refusal(plane.create(EnableInterContainerTrafficEncryption=True))
    assert "hosts of a job talk over the network between their nodes, in the clear" in message
    resources = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 16_000}
    await plane.create(ResourceConfig=resources)
    assert (await plane.job()).warnings == (), "nobody knows how much the disks of nodes have free"


async def test_network_isolation_needs_hosts_with_their_own_networks(plane):
    plane.admission.has_host_networks = False
    code, message = await refusal(plane.create(EnableNetworkIsolation=True))
    assert code == "ValidationException"
    assert message.startswith("EnableNetworkIsolation can not be kept here: hosts share the network of this machine")
    await plane.create(EnableNetworkIsolation=False)


async def test_members_of_a_newer_client_are_warned_of(plane):
    call = Call(
        services=plane.services,
        params=request_of(),
        region="us-west-2",
        access_key_id="K",
        request_id="R",
        unknown_members=("ResourceConfig.Cooling",),
    )
    await dispatch("sagemaker", "CreateTrainingJob", call)
    assert (await plane.job()).warnings == ("ResourceConfig.Cooling has no effect: this release knows no such member",)


async def test_the_first_preferred_type_that_can_run_here_is_selected_and_described(plane):
    large, small = (
        {"InstanceType": "ml.c5.xlarge", "InstanceCount": 1000},
        {"InstanceType": "ml.m5.large", "InstanceCount": 2},
    )
    await plane.create(ResourceConfig={"InstancePreferences": [large, small], "VolumeSizeInGB": 1})
    resources = (await plane.describe())["ResourceConfig"]
    assert (resources["SelectedInstanceType"], resources["SelectedInstanceCount"]) == ("ml.m5.large", 2)
    assert resources["InstancePreferences"] == [large, small]
    await plane.passes()
    assert [host["instance_type"] for host in (await plane.job()).plan["hosts"]] == ["ml.m5.large", "ml.m5.large"]
    code, _ = await refusal(plane.create("other", ResourceConfig={"InstancePreferences": [large], "VolumeSizeInGB": 1}))
    assert code == "ResourceLimitExceeded"
