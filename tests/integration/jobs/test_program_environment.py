"""The environment of a program on its hosts: tree, code, channels, results; and every kind of its end."""

import gzip
import hashlib
import io
import json
import os
import struct
import subprocess
import time
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from boto3_clients import Clients, job_request, log_of, unique, wait
from program_jobs import (
    BUCKET,
    archive_of,
    channel,
    failure_of,
    members_of,
    model_of,
    object_at,
    processes_with,
    put,
    run,
    run_command,
    run_script,
    script_request,
    start,
    wait_for_none,
)
from running_service import SETTINGS, TRAIN_PYTHON, start_service

pytestmark = [pytest.mark.clients, pytest.mark.timeout(120), pytest.mark.xdist_group("program-environment")]

# Writes everything that the program sees as its model, one file per host.
FACTS = """
import json, os, sys
def read(path):
    with open(path) as file:
        return file.read()
config = "/opt/ml/input/config"
facts = {
    "arguments": sys.argv[1:],
    "environment": dict(os.environ),
    "tree": sorted(os.path.join(parent, name) for parent, folders, files in os.walk("/opt/ml") for name in folders),
    "config": {name: json.loads(read(f"{config}/{name}")) for name in sorted(os.listdir(config))},
    "data": {os.path.join(parent, name)[len("/opt/ml/input/data/"):]: read(os.path.join(parent, name))
             for parent, _, files in os.walk("/opt/ml/input/data") for name in files},
    "pwd": os.getcwd(),
}
with open(f"/opt/ml/model/{os.uname().nodename}.json", "w") as file:
    json.dump(facts, file)
"""
AWKWARD = {
    "quotes": """it's "quoted" \\ and `ticked` $HOME""",
    "json-text": '"a\\nb"',
    "object": '{"b": [1, 2.5, null], "a": "\u00fc"}',
    "number": "1e-3",
    "flag": "true",
    "unicode": "\u00fc\u6f22\u5b57\U0001f642 ",
    "spaces": "  two  words ",
    "dashes": "--not-an-option",
    "nothing": "",
    "n": "7",
}


def facts_by_host(aws, described):
    return {name.removesuffix(".json"): json.loads(body) for name, body in model_of(aws, described).items()}


@pytest.fixture(scope="module")
def two_hosts(aws):
    """Facts about the program's environment on two hosts of one script job, by host."""
    uri = put(aws, "environment/train/a.txt", "a")
    request = script_request(
        aws,
        unique("facts"),
        {"train.py": FACTS},
        hyperparameters=AWKWARD,
        instance_count=2,
        InputDataConfig=[channel("train", uri, content_type="text/plain")],
        Environment={"MARKER": "it's $MINE"},
    )
    return request, facts_by_host(aws, run(aws, request))


def test_every_host_finds_the_whole_tree_and_its_json_files(two_hosts):
    _, facts = two_hosts
    assert sorted(facts) == ["algo-1", "algo-2"]
    for host, seen in facts.items():
        folders = ("input/config", "input/data/train", "model", "output/data", "code", "checkpoints")
        assert {f"/opt/ml/{name}" for name in folders} <= set(seen["tree"])
        resources = seen["config"]["resourceconfig.json"]
        assert (resources["current_host"], resources["hosts"]) == (host, ["algo-1", "algo-2"])
        assert resources["network_interface_name"] in ("eth0", "lo")
        assert resources["current_instance_type"] == "ml.m5.large"
        entry = seen["config"]["inputdataconfig.json"]["train"]
        assert entry["ContentType"] == "text/plain"
        assert entry["TrainingInputMode"] == "File"
        assert seen["data"] == {"train/a.txt": "a"}


def test_hyperparameters_arrive_byte_for_byte(two_hosts):
    request, facts = two_hosts
    for seen in facts.values():
        assert seen["config"]["hyperparameters.json"] == request["HyperParameters"]


def test_scripts_get_hyperparameters_as_arguments_like_with_the_toolkit(two_hosts):
    _, facts = two_hosts
    expected = {
        "--quotes": AWKWARD["quotes"],
        "--json-text": "a\nb",
        "--object": "a=\u00fc,b=[1, 2.5, None]",
        "--number": "0.001",
        "--flag": "True",
        "--unicode": AWKWARD["unicode"],
        "--spaces": AWKWARD["spaces"],
        "--dashes": AWKWARD["dashes"],
        "--nothing": "",
        "-n": "7",
    }
    for seen in facts.values():
        arguments = seen["arguments"]
        assert dict(zip(arguments[::2], arguments[1::2], strict=True)) == expected


def test_scripts_get_sm_variables_and_the_users_own(two_hosts):
    _, facts = two_hosts
    for host, seen in facts.items():
        environment = seen["environment"]
        assert environment["SM_CURRENT_HOST"] == host
        assert json.loads(environment["SM_HOSTS"]) == ["algo-1", "algo-2"]
        assert environment["SM_CHANNEL_TRAIN"] == "/opt/ml/input/data/train"
        assert environment["SM_MODEL_DIR"] == "/opt/ml/model"
        assert environment["SM_HP_QUOTES"] == AWKWARD["quotes"]
        assert environment["SM_HP_UNICODE"] == AWKWARD["unicode"]
        assert json.loads(environment["SM_HPS"])["object"] == json.loads(AWKWARD["object"])
        assert environment["MARKER"] == "it's $MINE"


def test_a_raw_newline_in_a_hyperparameter_is_refused_by_the_model(aws):
    with pytest.raises(aws.sagemaker.exceptions.ClientError, match="regular expression pattern"):
        aws.sagemaker.create_training_job(**job_request(unique("newline"), "true", HyperParameters={"a": "b\nc"}))


@pytest.mark.long(10)
def test_requirements_are_installed_once_without_changing_the_environment(aws):
    script = "import iniconfig, sys; print('from', iniconfig.__file__, flush=True)"
    # The comment makes the file unique, so that no earlier run has left an environment for it.
    requirements = f"iniconfig==2.0.0  # {time.time_ns()}\n"
    logs = []
    for _ in range(2):
        described = run_script(aws, "requirements", script, files={"requirements.txt": requirements}, timeout_s=100)
        logs.append(log_of(aws, described["TrainingJobName"]))
        assert described["TrainingJobStatus"] == "Completed", logs[-1]
        assert any(line.startswith("from ") for line in logs[-1])
    assert any("installed iniconfig==2.0.0" in line for line in logs[0]), logs[0]
    assert not any("installed iniconfig" in line for line in logs[1]), logs[1]
    assert any("requirements.txt" in line and "environment is reused" in line for line in logs[1]), logs[1]
    original = subprocess.run([str(TRAIN_PYTHON), "-c", "import iniconfig"], capture_output=True, text=True)
    assert "ModuleNotFoundError" in original.stderr


@pytest.mark.long(9)
def test_failing_requirements_fail_the_job_with_the_installers_message(aws):
    described = run_script(
        aws, "no-such-package", "print(1)", files={"requirements.txt": "iniconfig==999.0\n"}, timeout_s=60
    )
    reason = failure_of(described)
    assert reason.startswith("ClientError")
    assert "iniconfig==999.0" in reason


# Builds a package without dependencies, and reports the environment of the build.
BUILD = """
import os, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with open("VICTIM", "w") as file:
        file.write("was here")
    try:
        met = open("KEYS").read()
    except OSError as error:
        met = type(error).__name__
    files = {
        "met.py": f"print('met', {os.uname().nodename!r}, {met!r}, {sorted(os.listdir('/sys/class/net'))!r})",
        "met-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: met\\nVersion: 1.0\\n",
        "met-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "met-1.0.dist-info/RECORD": "met.py,,\\n",
    }
    with zipfile.ZipFile(os.path.join(folder, "met-1.0-py3-none-any.whl"), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return "met-1.0-py3-none-any.whl"
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "build"\nbackend-path = ["."]\n'


@pytest.mark.root
@pytest.mark.parametrize("place", ["", "package/"], ids=["package of the entry point", "local requirement"])
@pytest.mark.long
def test_build_scripts_of_a_job_are_confined_to_its_host(aws, service, place):
    victim = Path(f"/opt/clary-victim-{os.getpid()}-{time.time_ns()}")
    build = BUILD.replace("VICTIM", str(victim)).replace("KEYS", str(service.home / "secrets" / "root.json"))
    files = {f"{place}build.py": build, f"{place}pyproject.toml": PROJECT, "train.py": "import met"}
    files |= {"requirements.txt": f"./{place}\n"} if place else {"setup.py": ""}
    program = "train.py" if place else "met"
    try:
        described = run(aws, script_request(aws, unique("build"), files, program=program, EnableNetworkIsolation=True))
        log = log_of(aws, described["TrainingJobName"])
        assert described["TrainingJobStatus"] == "Completed", log
        # A host without internet access still has a network with the job's other hosts.
        assert any(line.startswith("met algo-1 FileNotFoundError") for line in log), log
        assert not victim.exists()
    finally:
        victim.unlink(missing_ok=True)


def test_a_bash_script_is_an_entry_point_and_gets_the_arguments(aws):
    script = 'echo "arg count $#"; for a in "$@"; do echo "arg<$a>"; done; echo done > /opt/ml/model/done\n'
    request = script_request(
        aws, unique("bash"), {"train.sh": script}, program="train.sh", hyperparameters={"a": "x y", "bc": "it's"}
    )
    described = run(aws, request)
    assert model_of(aws, described) == {"done": b"done\n"}
    lines = log_of(aws, described["TrainingJobName"])
    assert [line for line in lines if line.startswith("arg<")] == ["arg<-a>", "arg<x y>", "arg<--bc>", "arg<it's>"]


def test_an_isolated_job_reads_its_code_from_a_channel_without_the_endpoint(aws, service):
    address = urlsplit(service.environment["AWS_ENDPOINT_URL"])
    script = f"""
import json, os, socket
facts = {{"proxy": os.environ.get("HTTPS_PROXY")}}
inside = os.environ["AWS_ENDPOINT_URL"].split("//")[1].split(":")
for place in [({address.hostname!r}, {address.port}), (inside[0], int(inside[1].strip("/"))), ("1.1.1.1", 443)]:
    try:
        socket.create_connection(place, timeout=3).close()
        facts[str(place)] = "reached"
    except OSError as error:
        facts[str(place)] = type(error).__name__
with open("/opt/ml/model/facts.json", "w") as file:
    json.dump(facts, file)
"""
    name = unique("isolated")
    uri = put(aws, f"isolated/{name}/sourcedir.tar.gz", archive_of({"sub/train.py": script}))
    request = script_request(
        aws,
        name,
        {},
        program="sub/train.py",
        hyperparameters={"sagemaker_submit_directory": json.dumps("/opt/ml/input/data/code/sourcedir.tar.gz")},
        EnableNetworkIsolation=True,
        InputDataConfig=[channel("code", uri)],
    )
    facts = json.loads(model_of(aws, run(aws, request))["facts.json"])
    assert facts.pop("proxy") is None
    assert "reached" not in facts.values(), facts


READ_CHANNELS = """
import json, os, time
data = "/opt/ml/input/data"
epochs = []
for epoch in range(2):
    path = f"{data}/piped_{epoch}"
    deadline = time.monotonic() + 20
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.01)
    with open(path, "rb") as pipe:
        epochs.append(pipe.read().hex())
files = {}
for parent, _, names in os.walk(data):
    for name in names:
        path = os.path.join(parent, name)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                files[path[len(data) + 1:]] = file.read().hex()
with open(f"/opt/ml/model/{os.uname().nodename}.json", "w") as file:
    json.dump({"epochs": epochs, "files": files}, file)
"""


@pytest.fixture(scope="module")
def channels_of_two_hosts(aws):
    """The data that two hosts read from channels of every kind, and the job's log."""
    base = unique("channels")
    for index in range(5):
        put(aws, f"{base}/data/part-{index}", f"part {index}")
    put(aws, f"{base}/data/deep/er/x", "x")
    put(aws, f"{base}/data/empty", "")
    put(aws, f"{base}/packed/a.csv.gz", gzip.compress(b"1,2\n"))
    put(aws, f"{base}/shards/0", "0")
    for index in range(1, 5):
        put(aws, f"{base}/shards/{index}", str(index))
    manifest = [{"prefix": f"s3://{BUCKET}/{base}/data/"}, "part-1", "deep/er/x"]
    prefix = f"s3://{BUCKET}/{base}"
    channels = [
        channel("prefix", f"{prefix}/data"),
        channel("single", f"{prefix}/data/part-3"),
        channel("manifest", put(aws, f"{base}/list.json", json.dumps(manifest)), S3DataType="ManifestFile"),
        channel("sharded", f"{prefix}/shards/", S3DataDistributionType="ShardedByS3Key"),
        channel("packed", f"{prefix}/packed/", CompressionType="Gzip"),
        channel("piped", f"{prefix}/shards/", InputMode="Pipe"),
        channel("fast", f"{prefix}/data/part-0", InputMode="FastFile"),
    ]
    request = script_request(
        aws, unique("channels"), {"train.py": READ_CHANNELS}, instance_count=2, InputDataConfig=channels
    )
    described = run(aws, request)
    facts = facts_by_host(aws, described)
    return facts, log_of(aws, described["TrainingJobName"])


def files_of(seen, name):
    return {
        path.removeprefix(f"{name}/"): bytes.fromhex(body)
        for path, body in seen["files"].items()
        if path.startswith(f"{name}/")
    }


def test_prefix_single_and_manifest_channels_hold_their_files(channels_of_two_hosts):
    for seen in channels_of_two_hosts[0].values():
        whole = {f"part-{index}": f"part {index}".encode() for index in range(5)} | {"deep/er/x": b"x", "empty": b""}
        assert files_of(seen, "prefix") == whole
        assert files_of(seen, "single") == {"part-3": b"part 3"}
        assert files_of(seen, "manifest") == {"part-1": b"part 1", "deep/er/x": b"x"}


def test_shards_of_two_hosts_do_not_overlap_and_cover_everything(channels_of_two_hosts):
    shards = [files_of(seen, "sharded") for seen in channels_of_two_hosts[0].values()]
    assert sorted(name for shard in shards for name in shard) == list("01234")
    assert all(shards)


def test_gzip_channels_are_unpacked(channels_of_two_hosts):
    for seen in channels_of_two_hosts[0].values():
        assert files_of(seen, "packed") == {"a.csv": b"1,2\n"}


def test_pipe_channels_give_every_epoch_from_the_start(channels_of_two_hosts):
    for seen in channels_of_two_hosts[0].values():
        assert [bytes.fromhex(epoch) for epoch in seen["epochs"]] == [b"01234", b"01234"]


def test_fast_file_channels_hold_their_files_and_the_log_explains_the_mode(channels_of_two_hosts):
    facts, log = channels_of_two_hosts
    for seen in facts.values():
        assert files_of(seen, "fast") == {"part-0": b"part 0"}
    assert any("FastFile is fetched whole" in line for line in log)


def test_recordio_wraps_each_object_of_a_pipe(aws):
    base = unique("recordio")
    put(aws, f"{base}/a", "abc")
    script = "open('/opt/ml/model/stream','wb').write(open('/opt/ml/input/data/wrapped_0','rb').read())"
    described = run_script(
        aws,
        "recordio",
        script,
        InputDataConfig=[channel("wrapped", f"s3://{BUCKET}/{base}/", InputMode="Pipe", RecordWrapperType="RecordIO")],
    )
    assert model_of(aws, described)["stream"] == struct.pack("<II", 0xCED7230A, 3) + b"abc\0"


def test_models_of_several_hosts_are_merged_and_output_has_its_own_archive(aws):
    command = (
        "h=$(hostname); mkdir /opt/ml/model/$h; echo $h > /opt/ml/model/$h/weights;"
        " mkdir -p /opt/ml/output/data/x; echo out $h > /opt/ml/output/data/x/$h"
    )
    request = job_request(unique("merged"), command)
    request["ResourceConfig"]["InstanceCount"] = 3
    described = run(aws, request)
    expected = {f"algo-{index}/weights": f"algo-{index}\n".encode() for index in (1, 2, 3)}
    assert model_of(aws, described) == expected
    uri = described["ModelArtifacts"]["S3ModelArtifacts"].replace("model.tar.gz", "output.tar.gz")
    output = members_of(object_at(aws, uri))
    assert {name.removeprefix("data/"): body for name, body in output.items()} == {
        f"x/algo-{index}": f"out algo-{index}\n".encode() for index in (1, 2, 3)
    }
    keys = [item["Key"] for item in aws.s3.list_objects_v2(Bucket=BUCKET, Prefix="out/merged")["Contents"]]
    assert all(key.endswith(("/model.tar.gz", "/output.tar.gz")) for key in keys), "what was staged is gone"


def test_without_compression_results_are_loose_objects(aws):
    described = run_command(
        aws,
        "loose",
        "cd /opt/ml; mkdir model/a; echo 1 > model/a/b; touch 'model/with space'; echo 2 > output/data/c",
        OutputDataConfig={"S3OutputPath": f"s3://{BUCKET}/loose", "CompressionType": "NONE"},
    )
    assert described["TrainingJobStatus"] == "Completed", described.get("FailureReason")
    base = f"loose/{described['TrainingJobName']}/output/"
    listed = aws.s3.list_objects_v2(Bucket=BUCKET, Prefix=base)["Contents"]
    assert {item["Key"].removeprefix(base) for item in listed} == {"model/a/b", "model/with space", "data/c"}
    assert described["ModelArtifacts"]["S3ModelArtifacts"].rstrip("/") == f"s3://{BUCKET}/{base}model"


def test_a_large_artifact_is_stored_bit_for_bit(aws, tmp_path):
    command = "head -c 67108864 /dev/urandom > /opt/ml/model/big; sha256sum /opt/ml/model/big"
    described = run_command(aws, "big", command)
    place = urlsplit(described["ModelArtifacts"]["S3ModelArtifacts"])
    aws.s3.download_file(place.netloc, place.path[1:], str(tmp_path / "model.tar.gz"))
    body = members_of((tmp_path / "model.tar.gz").read_bytes())["big"]
    assert len(body) == 67108864
    assert f"{hashlib.sha256(body).hexdigest()}  /opt/ml/model/big" in log_of(aws, described["TrainingJobName"])


def test_a_failing_import_is_named_in_the_failure_reason(aws):
    reason = failure_of(run_script(aws, "import", "import no_such_module_at_all\n"))
    assert reason.startswith("AlgorithmError")
    assert "ModuleNotFoundError: No module named 'no_such_module_at_all'" in reason
    assert reason.endswith("exit code: 1")


def test_a_missing_entry_point_is_named_with_the_existing_files(aws):
    request = script_request(aws, unique("missing"), {"other.py": "pass"}, program="train.py")
    reason = failure_of(run(aws, request))
    assert reason.startswith("ClientError")
    assert "train.py" in reason
    assert "other.py" in reason


@pytest.mark.parametrize("has_parameter", [False, True])
def test_the_variable_of_the_program_wins_over_the_hyperparameter(aws, has_parameter):
    tell = "import json, os; json.dump([{}, dict(os.environ)], open('/opt/ml/model/told.json', 'w'))"
    files = {"train.py": tell.format("'train'"), "other.py": tell.format("'other'")}
    request = script_request(aws, unique("variable"), files, Environment={"SAGEMAKER_PROGRAM": "other.py"})
    if not has_parameter:
        del request["HyperParameters"]["sagemaker_program"]
    name, variables = json.loads(model_of(aws, run(aws, request))["told.json"])
    assert name == "other"
    assert (variables["SM_USER_ENTRY_POINT"], variables["SM_MODULE_NAME"]) == ("other.py", "other")


def test_a_missing_source_archive_is_named(aws):
    request = script_request(aws, unique("no-source"), {"train.py": ""})
    request["HyperParameters"]["sagemaker_submit_directory"] = f'"s3://{BUCKET}/code/never-was/sourcedir.tar.gz"'
    reason = failure_of(run(aws, request))
    assert "never-was/sourcedir.tar.gz" in reason


LAUNCHERS = [
    {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"},
    {"sagemaker_distributed_dataparallel_enabled": "true"},
    {"sagemaker_torch_distributed_enabled": "true"},
]


def test_an_abort_of_the_program_is_a_failure_that_names_the_signal(aws):
    reason = failure_of(run_script(aws, "abort", "import os; os.abort()"))
    assert "SIGABRT" in reason


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=["mpi", "smddp", "torchrun"])
@pytest.mark.long(10)
def test_a_killed_rank_fails_the_job_and_is_named_with_its_signal(aws, launcher):
    script = (
        "import os, signal, time\n"
        "rank = os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['RANK']\n"
        "if rank == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(600)\n"
    )
    reason = failure_of(run_script(aws, "killed", script, hyperparameters=launcher, instance_count=2))
    assert "rank 1" in reason
    assert "signal 9" in reason


GLOO = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
groups = [dist.new_group() for _ in range(6)]
for group in groups:
    value = torch.ones(1)
    dist.all_reduce(value, group=group)
    assert value.item() == dist.get_world_size()
if dist.get_rank() == 0:
    open("/opt/ml/model/sum", "w").write(str(value.item()))
"""  # no destroy_process_group, so gloo's threads live at exit


@pytest.mark.long(10)
def test_scripts_with_many_gloo_groups_complete_every_time(aws):
    names = [
        start(
            aws,
            script_request(
                aws,
                unique(f"gloo-{index}"),
                {"train.py": GLOO},
                hyperparameters={"sagemaker_torch_distributed_enabled": "true"},
                instance_count=2,
            ),
        )
        for index in range(2)
    ]
    for name in names:
        described = wait(aws, name, timeout_s=90)
        assert model_of(aws, described) == {"sum": b"2.0"} or model_of(aws, described) == {"sum": b"4.0"}


def test_when_one_host_fails_the_job_and_its_processes_end_within_seconds(aws):
    name = unique("half")
    marker = f"sleeper-{name}"
    command = f"[ $(hostname) = algo-2 ] && {{ sleep 1; exit 3; }}; exec -a {marker} sleep 600"
    request = job_request(name, command)
    request["ResourceConfig"]["InstanceCount"] = 2
    aws.sagemaker.create_training_job(**request)
    wait(aws, name, until=("Training",))
    began = time.monotonic()
    described = wait(aws, name)
    took_s = time.monotonic() - began
    assert "exit code: 3" in failure_of(described)
    assert took_s < 1 + 5, "a second until the failure, five to be over"
    assert wait_for_none(lambda: processes_with(marker)) == {}


@pytest.mark.long(10)
def test_files_and_packages_of_a_program_stay_in_its_host(aws, service):
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("private_thing.py", "VALUE = 42\n")
        archive.writestr(
            "private_thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: private-thing\nVersion: 1.0\n"
        )
        archive.writestr(
            "private_thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("private_thing-1.0.dist-info/RECORD", "")
    name = unique("private")
    uri = put(aws, f"{name}/private_thing-1.0-py3-none-any.whl", wheel.getvalue())
    secrets = service.home / "secrets"
    command = f"""
set -e
echo x > /clary-private-{name}; echo x > /usr/local/clary-private-{name}; echo x > /tmp/clary-private-{name}
rm -rf /usr/share/doc
python -m pip install --no-index --no-deps --quiet /opt/ml/input/data/wheel/*.whl
python -c 'import private_thing; print("value", private_thing.VALUE)'
echo "home: $(ls -A {service.home} 2>/dev/null | tr '\\n' ' ')"
find {service.home} -type f -size -1M 2>/dev/null | grep -v /environments/ | sed 's/^/readable: /' || true
cat {secrets}/* {service.home}/clary.db > /dev/null 2>&1 && echo 'secrets: read' || echo 'secrets: out of reach'
"""
    had_doc = os.path.isdir("/usr/share/doc")
    request = script_request(
        aws, name, {"train.sh": command}, program="train.sh", InputDataConfig=[channel("wheel", uri)]
    )
    described = run(aws, request)
    lines = log_of(aws, described["TrainingJobName"])
    assert described["TrainingJobStatus"] == "Completed", lines
    assert "value 42" in lines
    assert "secrets: out of reach" in lines
    assert not [line for line in lines if line.startswith("readable: ")]
    for folder in ("/", "/usr/local/", "/tmp/"):
        assert not os.path.exists(f"{folder}clary-private-{name}")
    assert os.path.isdir("/usr/share/doc") == had_doc
    described = run_command(aws, "private-next", f"python -c 'import private_thing' || ls /tmp /clary-private-{name}")
    lines = log_of(aws, described["TrainingJobName"])
    assert any("No module named 'private_thing'" in line for line in lines)
    assert not any(line == f"clary-private-{name}" for line in lines)


def test_programs_reach_the_internet_through_a_proxy_that_refuses_aws(aws):
    script = """
import os, socket
address = os.environ["HTTPS_PROXY"].split("//")[1].strip("/").split(":")
for name in ("ec2.us-west-2.amazonaws.com", "bucket.s3-accelerate.dualstack.amazonaws.com.cn"):
    with socket.create_connection((address[0], int(address[1])), timeout=10) as proxy:
        proxy.sendall(f"CONNECT {name}:443 HTTP/1.1\\r\\nHost: {name}:443\\r\\n\\r\\n".encode())
        print("answer", name, proxy.recv(4096).split(b"\\r\\n")[0].decode(), flush=True)
"""
    described = run_script(aws, "proxy", script)
    lines = log_of(aws, described["TrainingJobName"])
    assert described["TrainingJobStatus"] == "Completed", lines
    answers = [line for line in lines if line.startswith("answer ")]
    assert len(answers) == 2
    assert all("403" in answer for answer in answers)


SMALL_DISK_BYTES = 48 << 20


@pytest.fixture(scope="module")
def cramped(tmp_path_factory):
    """A service whose jobs have a small disk and a short grace."""
    home = tmp_path_factory.mktemp("cramped") / "home"
    jobs = home / "jobs"
    jobs.mkdir(parents=True)
    is_small = os.geteuid() == 0
    if is_small:
        options = f"size={SMALL_DISK_BYTES},mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "clary-small-disk", str(jobs)], check=True)
    service = None
    try:
        # The cache is on another disk, which has room for data that does not fit on the jobs' disk.
        variables = {"CLARY_CHANNEL_CACHE_BYTES": "0"}
        service = start_service(home, SETTINGS.replace("stop_grace_s = 10.0", "stop_grace_s = 1.0"), **variables)
        service.has_small_disk = is_small
        yield service
        service.clary("down")
    finally:
        if service is not None:
            service.clary("down", check=False)
        if is_small:
            subprocess.run(["umount", str(jobs)], check=True)


@pytest.fixture
def small_disk(cramped):
    if not cramped.has_small_disk:
        pytest.skip("needs root: mounts a small disk")
    return Clients(cramped)


@pytest.mark.long(12)
def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(cramped):
    aws = Clients(cramped)
    name = unique("deaf")
    marker = f"deaf-{name}"
    request = job_request(
        name, f"trap '' TERM; echo kept > /opt/ml/model/kept; (exec -a {marker} sleep 600); sleep 600"
    )
    request["StoppingCondition"] = {"MaxRuntimeInSeconds": 1}
    began = time.monotonic()
    described = run(aws, request)
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
    assert time.monotonic() - began < 20
    assert members_of(object_at(aws, described["ModelArtifacts"]["S3ModelArtifacts"])) == {"kept": b"kept\n"}
    assert wait_for_none(lambda: processes_with(marker)) == {}


def test_a_channel_that_does_not_fit_on_the_disk_fails_the_job_with_that_reason(small_disk):
    uri = put(small_disk, "too/big", bytes(SMALL_DISK_BYTES + 1))
    reason = failure_of(run_command(small_disk, "full", "true", InputDataConfig=[channel("big", uri)]))
    assert "No space left on device" in reason
    assert "bytes free" in reason


@pytest.mark.parametrize(
    "command",
    [
        "dd if=/dev/zero of=/opt/ml/model/big bs=1M count=200",
        'python -c \'open("/opt/ml/model/big", "wb").write(bytes(200 << 20))\'',
        "head -c 200M /dev/zero > /tmp/big",
        "for i in $(seq 3); do head -c 40M /dev/zero > /opt/ml/output/data/$i || exit 1; done",
    ],
)
@pytest.mark.long
def test_a_program_that_fills_the_disk_fails_with_a_reason_that_names_it(small_disk, command):
    described = run_command(small_disk, "fills", command)
    assert "No space left on device" in failure_of(described)
    assert small_disk.sagemaker.list_training_jobs(MaxResults=1)["TrainingJobSummaries"]


@pytest.mark.long(10)
def test_a_source_that_does_not_fit_on_the_disk_fails_the_job_with_that_reason(small_disk):
    source = archive_of({"train.py": "pass", "big": bytes(SMALL_DISK_BYTES + 1)})
    reason = failure_of(run(small_disk, script_request(small_disk, unique("source"), source)))
    assert "No space left on device" in reason
