"""The channel cache in jobs: repeated jobs, programs that change their data, lines in the log, counted GETs."""

import gzip
import json
import shutil

import pytest
from boto3_clients import Clients, job_request, log_of, unique, wait
from faulty_gateway import faulty_gateway
from program_jobs import BUCKET, channel, model_of, put, run, script_request
from running_service import start_service
from weed_servers import KEYS, running_weed

pytestmark = [pytest.mark.clients, pytest.mark.timeout(180), pytest.mark.xdist_group("channel-cache")]

# Records the files that it sees, then changes all of them in every way that scripts use.
SCRIPT = """
import json, os, shutil
data = "/opt/ml/input/data"
data = os.environ.get("SM_CHANNEL_TRAIN", data + "/train").rpartition("/")[0]
seen = {}
for parent, _, files in os.walk(data):
    for name in files:
        path = os.path.join(parent, name)
        with open(path) as file:
            seen[os.path.relpath(path, data)] = file.read()
with open(os.path.join(os.environ["SM_MODEL_DIR"], os.environ["SM_CURRENT_HOST"] + ".json"), "w") as file:
    json.dump(seen, file)
with open(os.path.join(data, "train", "0"), "a") as file:
    file.write("scribble")
with open(os.path.join(data, "train", "1"), "r+") as file:
    file.write("X")
shutil.rmtree(os.path.join(data, "train", "sub"))
os.mkdir(os.path.join(data, "fast", "unpacked"))
for parent, _, files in os.walk(data):
    for name in files:
        os.chmod(os.path.join(parent, name), 0o777)
"""


class Site:
    """A service whose object store counts its requests."""

    def __init__(self, service, gateway):
        self.service = service
        self.aws = Clients(service)
        self._gateway = gateway

    def num_gets(self, *prefixes):
        """Return the number of objects below these prefixes requested since the last call, without listings."""
        places = tuple(f"/{BUCKET}/{prefix}" for prefix in prefixes)
        with self._gateway.lock:
            asked = list(self._gateway.requests)
            self._gateway.requests.clear()
        return sum(1 for method, path, _ in asked if method == "GET" and path.startswith(places))


@pytest.fixture(scope="module", params=["namespaces", "processes"])
def site(request, tmp_path_factory):
    home = tmp_path_factory.mktemp(f"clary-{request.param}")
    with (
        running_weed(tmp_path_factory.mktemp("weed")) as weed,
        faulty_gateway(weed.endpoint.url) as gateway,
    ):
        service = start_service(
            home,
            CLARY_ISOLATION=request.param,
            CLARY_S3_ENDPOINT_URL=gateway.url,
            CLARY_S3_ACCESS_KEY_ID=KEYS.access_key_id,
            CLARY_S3_SECRET_ACCESS_KEY=KEYS.secret_access_key,
        )
        try:
            yield Site(service, gateway)
        finally:
            service.clary("down")
            leftovers = service.clary("doctor", check=False).stdout
    assert "left behind" not in leftovers, leftovers
    shutil.rmtree(home, ignore_errors=True)


def seen_by(aws, described):
    return {name.removesuffix(".json"): json.loads(body) for name, body in model_of(aws, described).items()}


@pytest.mark.long
def test_a_repeated_job_fetches_no_object_and_sees_the_same_files(site):
    aws, prefix = site.aws, unique("again")
    for name in ("train/0", "train/1", "train/sub/2", "fast/x"):
        put(aws, f"{prefix}/{name}", f"of {name}")
    put(aws, f"{prefix}/packed/y.gz", gzip.compress(b"of packed/y"))
    put(aws, f"{prefix}/shared/0", "s0")
    put(aws, f"{prefix}/shared/1", "s1")
    inputs = [
        channel("train", f"s3://{BUCKET}/{prefix}/train"),
        channel("fast", f"s3://{BUCKET}/{prefix}/fast", InputMode="FastFile"),
        channel("packed", f"s3://{BUCKET}/{prefix}/packed", CompressionType="Gzip"),
        channel("shared", f"s3://{BUCKET}/{prefix}/shared", S3DataDistributionType="ShardedByS3Key"),
    ]
    request = script_request(aws, prefix, {"train.py": SCRIPT}, instance_count=2, InputDataConfig=inputs)
    code = request["HyperParameters"]["sagemaker_submit_directory"]
    code_prefix = json.loads(code).removeprefix(f"s3://{BUCKET}/")
    common = {"train/0": "of train/0", "train/1": "of train/1", "train/sub/2": "of train/sub/2"}
    common |= {"fast/x": "of fast/x", "packed/y": "of packed/y"}
    expected = {"algo-1": {**common, "shared/0": "s0"}, "algo-2": {**common, "shared/1": "s1"}}
    gets = []
    for number in range(3):
        site.num_gets()
        described = run(aws, {**request, "TrainingJobName": f"{prefix}-{number}"})
        gets.append(site.num_gets(f"{prefix}/", code_prefix))
        assert seen_by(aws, described) == expected, number
    assert gets == [8, 0, 0]  # seven objects and the archive, once for both hosts
    lines = log_of(aws, f"{prefix}-2")
    told = [line for line in lines if "this machine's cache" in line]
    assert len(told) == 8, lines
    assert (
        sum("channel train: 3 objects, 34 bytes: 3 from this machine's cache, 0 fetched" in line for line in told) == 2
    )
    put(aws, f"{prefix}/train/1", "new 1")
    site.num_gets()
    described = run(aws, {**request, "TrainingJobName": f"{prefix}-changed"})
    expected["algo-1"]["train/1"] = expected["algo-2"]["train/1"] = "new 1"
    assert seen_by(aws, described) == expected
    assert site.num_gets(f"{prefix}/") == 1


LINKING = """
import os
words = os.path.join(os.environ["SM_CHANNEL_BASE"], "words.txt")
os.symlink(words, os.path.join(os.environ["SM_MODEL_DIR"], "words.txt"))
"""


@pytest.mark.long(10)
def test_links_from_the_model_into_a_channel_are_stored_with_its_data(site):
    aws, prefix = site.aws, unique("links")
    put(aws, f"{prefix}/base/words.txt", "some words")
    inputs = [channel("base", f"s3://{BUCKET}/{prefix}/base")]
    for _ in range(2):
        described = run(aws, script_request(aws, unique("links"), {"train.py": LINKING}, InputDataConfig=inputs))
        assert model_of(aws, described) == {"words.txt": b"some words"}


RENAMING = """
import os, pathlib
os.rename("/opt/ml/input/data", "/opt/ml/input/former")
os.mkdir("/opt/ml/input/data")
os.symlink({elsewhere!r}, "/opt/ml/input/data/base")
for name in ("words.txt", "secret.txt"):
    os.symlink("/opt/ml/input/data/base/" + name, os.path.join(os.environ["SM_MODEL_DIR"], name))
"""


@pytest.mark.long
def test_no_file_is_read_or_written_through_a_link_in_place_of_a_channel(site, tmp_path):
    if site.service.variables["CLARY_ISOLATION"] == "processes":
        pytest.skip("plain processes write to the files of their user themselves")
    aws, prefix = site.aws, unique("renamed")
    put(aws, f"{prefix}/base/words.txt", "some words")
    (tmp_path / "secret.txt").write_text("of this machine")
    inputs = [channel("base", f"s3://{BUCKET}/{prefix}/base")]
    script = RENAMING.format(elsewhere=str(tmp_path))
    described = run(aws, script_request(aws, prefix, {"train.py": script}, InputDataConfig=inputs))
    model = model_of(aws, described)
    assert model["words.txt"] == b"some words"  # data of the original channel
    assert model.get("secret.txt") != b"of this machine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret.txt"]


@pytest.mark.long(15)
def test_programs_do_not_see_the_cache(site):
    if site.service.variables["CLARY_ISOLATION"] == "processes":
        pytest.skip("plain processes see the files of their user")
    aws, prefix = site.aws, unique("hidden")
    put(aws, f"{prefix}/data/x", "x")
    name = unique("hidden")
    command = f"ls -A {site.service.home} {site.service.home}/cache/channels; cat /opt/ml/input/data/train/x; echo done"
    inputs = [channel("train", f"s3://{BUCKET}/{prefix}/data")]
    aws.sagemaker.create_training_job(**job_request(name, command, InputDataConfig=inputs))
    assert wait(aws, name)["TrainingJobStatus"] == "Completed"
    lines = log_of(aws, name)
    assert any("xdone" in line for line in lines), lines
    assert any("cannot access" in line and "cache/channels" in line for line in lines), lines
    assert not any("snapshots" in line for line in lines), lines
