"""Every member of every request has a decision (honoured, no effect, refused), and the service follows it."""

import sys
from pathlib import Path

import pytest

from clary.control.jobs.members.judging import TABLES, is_decided, judge
from clary.control.jobs.members.member import Outcome, Site
from clary.control.jobs.members.place import ON_NODES
from clary.control.wire.models import Protocol, service
from clary.testing.control_plane import request_of

ROOT = next(parent for parent in Path(__file__).resolve().parents if parent.name == "tests").parent
SITE = Site()
TRUSTED = Site(machine_is_trusted=True)


def members_of(shape, prefix="", under_way=()):
    """Yield the path of every leaf member; a table has to decide on each of these paths."""
    if shape.type_name == "list" and shape.member.type_name in ("structure", "list"):
        yield from members_of(shape.member, f"{prefix}[]", under_way)
    elif shape.type_name == "structure" and shape.name not in under_way:
        for name, member in shape.members.items():
            yield from members_of(member, f"{prefix}.{name}" if prefix else name, (*under_way, shape.name))
    else:
        yield prefix


def paths_of(operation):
    return list(members_of(service("sagemaker").operation(operation, Protocol.JSON_1_1).model.input_shape))


@pytest.mark.parametrize("operation", TABLES)
def test_every_member_of_the_model_has_a_decision(operation):
    undecided = [path for path in paths_of(operation) if not is_decided(operation, path)]
    assert undecided == [], (
        f"botocore's {operation} has members that nobody decided on: {', '.join(undecided)}. Say in "
        "src/clary/control/jobs/members whether they are honoured, without effect or refused"
    )


@pytest.mark.parametrize("operation", TABLES)
def test_every_decision_names_a_member_of_the_model_and_none_is_made_twice(operation):
    decided = [member.path for member in TABLES[operation]]
    assert len(decided) == len(set(decided))
    known = paths_of(operation)
    strange = [
        path for path in decided if not any(f"{known_}.".startswith((f"{path}.", f"{path}[")) for known_ in known)
    ]
    assert strange == []


@pytest.mark.parametrize("operation", ["StopTrainingJob", "DeleteTrainingJob", "ListTrainingJobs", "Search"])
def test_operations_whose_response_has_no_warnings_have_no_rule_that_warns(operation):
    rules = [rule for member in TABLES[operation] for rule in member.rules]
    assert [rule for rule in rules if rule.outcome is Outcome.WARNED] == []


def test_a_member_of_a_newer_model_is_undecided():
    assert not is_decided("CreateTrainingJob", "ResourceConfig.MemberOfTomorrow")
    assert is_decided("CreateTrainingJob", "VpcConfig.MemberOfTomorrow")  # VpcConfig as a whole has no effect


def channel(*, source=None, **members):
    s3 = {"S3Uri": "s3://b/p", "S3DataType": "S3Prefix", **(source or {})}
    return {"InputDataConfig": [{"ChannelName": "train", "DataSource": {"S3DataSource": s3}, **members}]}


def file_system(**members):
    source = {"FileSystemId": "fs-0123456789abcdef0", "DirectoryPath": "/data", "FileSystemType": "EFS"}
    source["FileSystemAccessMode"] = "ro"
    return {"InputDataConfig": [{"ChannelName": "train", "DataSource": {"FileSystemDataSource": source}, **members}]}


def resources(**members):
    return {"ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, **members}}


def algorithm(**members):
    return {"AlgorithmSpecification": {"TrainingImage": "i:1", "TrainingInputMode": "File", **members}}


def rules(member, **members):
    rule = {"RuleConfigurationName": "Loss", "RuleEvaluatorImage": "a.b/sagemaker-debugger-rules:latest"}
    return {member: [{**rule, **members}]}


MANIFEST = {"S3DataType": "ManifestFile"}
CREDENTIALS = {"TrainingRepositoryCredentialsProviderArn": "arn:aws:lambda:us-west-2:000000000000:function:f"}
REFUSED = [
    ({"RemoteDebugConfig": {"EnableRemoteDebug": True}}, "RemoteDebugConfig.EnableRemoteDebug is not supported"),
    ({"OutputDataConfig": {"S3OutputPath": "s3://b/o", "KmsKeyId": "alias/key"}}, "OutputDataConfig.KmsKeyId asks for"),
    (resources(VolumeKmsKeyId="key"), "ResourceConfig.VolumeKmsKeyId asks for encryption that is not done"),
    ({"EnableInterContainerTrafficEncryption": True}, "EnableInterContainerTrafficEncryption asks for encryption"),
    (resources(SelectedInstanceType="t"), "ResourceConfig.SelectedInstanceType is read-only"),
    (resources(SelectedInstanceCount=1), "ResourceConfig.SelectedInstanceCount is read-only"),
    (file_system(InputMode="Pipe"), "Channel 'train': Pipe reads objects of an S3DataSource"),
    ({**algorithm(TrainingInputMode="Pipe"), **file_system()}, "Channel 'train': Pipe reads objects"),
    (channel(source=MANIFEST, InputMode="FastFile"), "Channel 'train': FastFile takes S3Prefix only"),
    ({**algorithm(TrainingInputMode="FastFile"), **channel(source=MANIFEST)}, "Channel 'train': FastFile takes"),
    (channel(source={"S3DataType": "Converse"}), "Channel 'train': S3DataType Converse is not supported"),
]
WARNED = [
    (resources(TrainingPlanArn="arn:..."), "TrainingPlanArn has no effect"),
    (resources(InstancePlacementConfig={"EnableMultipleJobs": True}), "InstancePlacementConfig has no effect"),
    (algorithm(TrainingImageConfig={"TrainingRepositoryAccessMode": "Vpc"}), "TrainingImageConfig has no effect"),
    ({"RoleArn": "arn:aws:iam::123456789012:role/R"}, "RoleArn arn:aws:iam::123456789012:role/R has no effect"),
    (channel(source={"ModelAccessConfig": {"AcceptEula": True}}), "channel train: ModelAccessConfig has no effect"),
    (channel(source={"HubAccessConfig": {"HubContentArn": "a"}}), "channel train: HubAccessConfig has no effect"),
    (channel(source={"AttributeNames": ["a"]}), "channel train: AttributeNames has no effect"),
    (channel(RecordWrapperType="RecordIO"), "channel train: RecordWrapperType RecordIO has no effect outside of Pipe"),
    (channel(ShuffleConfig={"Seed": 0}), "channel train: ShuffleConfig has no effect outside of Pipe"),
    (channel(InputMode="FastFile"), "channel train: FastFile is fetched whole"),
    ({**algorithm(TrainingInputMode="FastFile"), **channel()}, "channel train: FastFile is fetched whole"),
    ({**algorithm(TrainingInputMode="FastFile"), **file_system()}, "channel train: FastFile has no effect on a file"),
    (file_system(CompressionType="Gzip"), "channel train: CompressionType Gzip has no effect on a file system"),
    (file_system(RecordWrapperType="RecordIO"), "channel train: RecordWrapperType RecordIO has no effect outside of"),
    (file_system(ShuffleConfig={"Seed": 1}), "channel train: ShuffleConfig has no effect outside of Pipe mode"),
    (
        algorithm(
            TrainingImageConfig={
                "TrainingRepositoryAccessMode": "Platform",
                "TrainingRepositoryAuthConfig": CREDENTIALS,
            }
        ),
        "TrainingImageConfig has no effect",
    ),
    ({"SessionChainingConfig": {"EnableSessionTagChaining": True}}, "SessionChainingConfig has no effect"),
    ({"VpcConfig": {"Subnets": ["s"], "SecurityGroupIds": ["g"]}}, "VpcConfig is accepted and has no effect"),
    (rules("DebugRuleConfigurations", S3OutputPath="s3://b/r"), "rule Loss: DebugRuleConfigurations.S3OutputPath has"),
    (rules("DebugRuleConfigurations", LocalPath="/opt/r"), "rule Loss: LocalPath has no effect"),
    (rules("DebugRuleConfigurations", RuleEvaluatorImage="i:1"), "rule Loss: RuleEvaluatorImage i:1 is not run"),
    (
        rules("ProfilerRuleConfigurations", InstanceType="ml.t3.medium", VolumeSizeInGB=1),
        "ProfilerRuleConfigurations: rules run beside the program",
    ),
    (
        {"ProfilerConfig": {"ProfilingParameters": {"PythonProfilingConfig": "{}", "LocalPath": "/opt/p"}}},
        "ProfilerConfig.ProfilingParameters: only DetailedProfilingConfig has an effect",
    ),
]
SILENT = [
    {},
    {"OutputDataConfig": {"S3OutputPath": "s3://b/o", "KmsKeyId": ""}},
    {"EnableInterContainerTrafficEncryption": False, "RemoteDebugConfig": {"EnableRemoteDebug": False}},
    {"SessionChainingConfig": {"EnableSessionTagChaining": False}},
    algorithm(TrainingImageConfig={"TrainingRepositoryAccessMode": "Platform"}, EnableSageMakerMetricsTimeSeries=True),
    channel(InputMode="Pipe", RecordWrapperType="RecordIO", ShuffleConfig={"Seed": 1}),
    channel(RecordWrapperType="None"),
    file_system(InputMode="File", CompressionType="None"),
    {**algorithm(TrainingInputMode="Pipe"), **file_system(InputMode="File")},
    {**algorithm(TrainingInputMode="FastFile"), **channel(source=MANIFEST, InputMode="File")},
    algorithm(TrainingInputMode="FastFile"),  # nothing is downloaded for this channel
    channel(source={"S3DataDistributionType": "ShardedByS3Key"}, ShuffleConfig={"Seed": 1}),
    {**algorithm(TrainingInputMode="Pipe"), **channel(ShuffleConfig={"Seed": 1})},
    rules("DebugRuleConfigurations", RuleParameters={"rule_to_invoke": "LossNotDecreasing"}),
    rules("ProfilerRuleConfigurations", S3OutputPath="s3://b/r"),
    {"ProfilerConfig": {"ProfilingParameters": {"DetailedProfilingConfig": "{}"}, "DisableProfiler": True}},
    {"InfraCheckConfig": {"EnableInfraCheck": True}},
]


@pytest.mark.parametrize(("members", "words"), REFUSED, ids=[words[:50] for _, words in REFUSED])
def test_a_member_that_no_job_can_have_is_refused_in_one_sentence(members, words):
    (sentence,) = judge("CreateTrainingJob", request_of(**members), SITE).refusals
    assert sentence.startswith(words)


@pytest.mark.parametrize(("members", "words"), WARNED, ids=[words[:50] for _, words in WARNED])
def test_a_member_without_effect_is_warned_of_in_one_sentence(members, words):
    judgement = judge("CreateTrainingJob", request_of(**members), SITE)
    assert judgement.refusals == ()
    (sentence,) = judgement.warnings
    assert sentence.startswith(words)


@pytest.mark.parametrize("members", SILENT)
def test_a_member_that_takes_effect_or_asks_for_nothing_is_not_mentioned(members):
    judgement = judge("CreateTrainingJob", request_of(**members), SITE)
    assert (judgement.refusals, judgement.warnings) == ((), ())


def test_missing_encryption_is_only_warned_of_where_the_machine_is_trusted():
    request = request_of(
        OutputDataConfig={"S3OutputPath": "s3://b/o", "KmsKeyId": "key"},
        EnableInterContainerTrafficEncryption=True,
        **resources(VolumeKmsKeyId="key"),
    )
    assert len(judge("CreateTrainingJob", request, SITE).refusals) == 3
    judgement = judge("CreateTrainingJob", request, TRUSTED)
    assert judgement.refusals == ()
    assert len(judgement.warnings) == 3
    assert all("has no effect" in sentence for sentence in judgement.warnings)


def test_a_volume_is_warned_of_only_if_the_disk_has_less_free_space():
    request = request_of(**resources(VolumeSizeInGB=30))
    free = 30_000_000_000
    assert judge("CreateTrainingJob", request, Site(free_disk_bytes=free)).warnings == ()
    (sentence,) = judge("CreateTrainingJob", request, Site(free_disk_bytes=free - 1)).warnings
    assert sentence.startswith("VolumeSizeInGB 30: no disk is set aside for it")


def test_sentences_name_the_nodes_where_hosts_are_other_machines():
    request = request_of(EnableInterContainerTrafficEncryption=True, **resources(VolumeKmsKeyId="key"))
    volume, traffic = judge("CreateTrainingJob", request, Site(place=ON_NODES)).refusals
    assert "what hosts write lies on the disks of their nodes as it is" in volume
    assert "talk over the network between their nodes, in the clear" in traffic
    assert traffic.endswith("if the nodes, their disks and the network between them are trusted.")
    here = judge("CreateTrainingJob", request, TRUSTED).warnings
    assert "hosts of a job talk over a network inside of this machine, in the clear" in here[1]


def test_network_isolation_is_refused_where_hosts_have_no_network_of_their_own():
    request = request_of(EnableNetworkIsolation=True)
    assert judge("CreateTrainingJob", request, SITE).refusals == ()
    (sentence,) = judge("CreateTrainingJob", request, Site(has_host_networks=False)).refusals
    assert sentence.startswith("EnableNetworkIsolation can not be kept here: hosts share the network of this machine")
    off = request_of(EnableNetworkIsolation=False)
    assert judge("CreateTrainingJob", off, Site(has_host_networks=False, place=ON_NODES)).refusals == ()


def test_an_update_refuses_a_remote_shell_and_warns_of_ignored_profiler_settings():
    refusal = judge("UpdateTrainingJob", {"RemoteDebugConfig": {"EnableRemoteDebug": True}}, SITE)
    assert len(refusal.refusals) == 1
    update = {"TrainingJobName": "job", "ProfilerConfig": {"ProfilingParameters": {"PythonProfilingConfig": "{}"}}}
    assert len(judge("UpdateTrainingJob", update, SITE).warnings) == 1


def test_the_same_problem_in_two_channels_gives_one_sentence_for_each():
    first, second = channel(InputMode="FastFile"), channel(InputMode="FastFile")
    second["InputDataConfig"][0]["ChannelName"] = "test"
    request = request_of(InputDataConfig=first["InputDataConfig"] + second["InputDataConfig"])
    assert len(judge("CreateTrainingJob", request, SITE).warnings) == 2


def test_the_api_page_of_members_matches_the_tables():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import make_api_page
    finally:
        sys.path.pop(0)
    assert make_api_page.TARGET.read_text() == make_api_page.page(), "run tools/make_api_page.py"
