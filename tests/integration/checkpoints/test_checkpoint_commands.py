"""`clary checkpoints` against a running service and its SeaweedFS: lists, whole and broken sets, hostile manifests."""

import hashlib
import json
import re
from datetime import UTC, datetime

import pytest
from boto3_clients import job_request, unique, wait

from clary.contract.checkpoint_sets import CheckpointFile, CheckpointSet, content_key, manifest_key, write_manifest

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("checkpoint-commands")]

BUCKET = "clary"
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def job(aws):
    """A job with CheckpointConfig that has ended."""
    name = unique("cli-checkpoints")
    config = {"S3Uri": f"s3://{BUCKET}/ckpt/{name}"}
    aws.sagemaker.create_training_job(**job_request(name, "true", CheckpointConfig=config))
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    return name


class Prefix:
    """The objects below the job's prefix, all put there by the test."""

    def __init__(self, aws, job):
        self._s3 = aws.s3
        self._prefix = f"ckpt/{job}/"
        self._arn = aws.sagemaker.describe_training_job(TrainingJobName=job)["TrainingJobArn"]
        for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self._prefix):
            for item in page.get("Contents", []):
                self._s3.delete_object(Bucket=BUCKET, Key=item["Key"])

    def put(self, relative, body):
        self._s3.put_object(Bucket=BUCKET, Key=self._prefix + relative, Body=body)

    def delete(self, relative):
        self._s3.delete_object(Bucket=BUCKET, Key=self._prefix + relative)

    def commit(self, host, number, contents, *, aside=False, evidence="closed", **changes):
        """Store contents (path -> bytes) and a set of them, as an agent does."""
        entries = []
        for path, body in contents.items():
            digest = hashlib.sha256(body).hexdigest()
            key = content_key(host, digest[:32]) if aside else path
            self.put(key, body)
            entries.append(CheckpointFile(path=path, size_bytes=len(body), sha256=digest, key=key, evidence=evidence))
        facts = {"job_arn": self._arn, "attempt": 1, "taken_at": datetime.now(UTC), "files": tuple(entries)}
        checkpoints = CheckpointSet(host=host, number=number, **({"left_out": ()} | facts | changes))
        self.put(manifest_key(host, number), write_manifest(checkpoints))


@pytest.fixture
def prefix(aws, job):
    return Prefix(aws, job)


def rows(service, job):
    lines = service.clary("checkpoints", job).stdout.splitlines()
    assert lines[0].split() == ["HOST", "SET", "TAKEN", "AGE", "FILES", "SIZE", "ATTEMPT", "EVIDENCE", "STATE"]
    # Lines below the table give the progress of each host.
    return [re.split(r"  +", line) for line in lines[1:] if not re.match(r"algo-\d+: ", line)]


def verify(service, job, *arguments):
    done = service.clary("checkpoints", "verify", job, *arguments, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_sets_are_listed_and_verified_whole(service, job, prefix):
    files = {"epoch-1/model.pt": bytes(range(256)) * 4000, "last": b"epoch-1", "gr\u00fc\u00dfe/leer": b""}
    prefix.commit("algo-1", 12, files)
    prefix.commit("algo-2", 3, {"epoch-1/rank-1.pt": b"x" * 100}, aside=True)
    prefix.put("epoch-1/rank-1.pt", b"x" * 100)
    listed = {row[0]: row for row in rows(service, job)}
    assert listed["algo-1"][1] == "12"
    assert listed["algo-1"][4:] == ["3", "1.0 MB", "1", "3 closed", "whole"]
    assert listed["algo-2"][4:] == ["1", "100 B", "1", "1 closed", "whole"]
    assert verify(service, job) == (0, ["whole: 2 sets, 4 files, 1.0 MB read; 4 files closed by the writer"])
    document = json.loads(service.clary("checkpoints", job, "--json").stdout)
    assert [entry["is_newest"] for entry in document["sets"]] == [True, True]


def test_missing_cut_and_changed_files_are_named_and_verify_exits_with_1(service, job, prefix):
    prefix.commit("algo-1", 1, {"good": b"1", "gone": b"2", "cut": b"345", "changed": b"6789"})
    prefix.delete("gone")
    prefix.put("cut", b"34")
    prefix.put("changed", b"678!")
    assert rows(service, job)[0][-1] == "incomplete: of 4 files 1 gone, 1 with another size"
    code, lines = verify(service, job)
    assert code == 1
    assert sorted(lines[:-1])[1:] == [
        "algo-1 set 1: cut: has 2 bytes, expected 3",
        "algo-1 set 1: gone: is missing",
    ]
    assert sorted(lines[:-1])[0].startswith("algo-1 set 1: changed: has other content: SHA-256 ")
    assert lines[-1].startswith("not whole: algo-1 set 1 (1 set, 4 files, ")


def test_a_set_judged_complete_only_by_time_is_not_called_whole(service, job, prefix):
    prefix.commit("algo-1", 1, {"a": b"1"}, evidence="rested")
    assert rows(service, job)[0][-2:] == ["1 rested for 0 s", "complete"]
    code, lines = verify(service, job)
    assert (code, lines[-1]) == (
        0,
        "complete as stored; wholeness not known: nothing said so of 1 file but 0 s of rest (1 set, 1 file, 1 B read)",
    )


def test_differing_plain_paths_are_reported_but_verify_succeeds(service, job, prefix):
    prefix.commit("algo-1", 1, {"rank.pt": b"of algo-1"})
    prefix.commit("algo-2", 1, {"rank.pt": b"of algo-2", "only-2.pt": b"x"}, aside=True)
    code, lines = verify(service, job)
    assert code == 0
    assert len(lines) == 3
    assert lines[0].startswith("algo-2 set 1: not part of a restore: rank.pt: has other content")
    assert lines[0].endswith("; algo-1 has a file of this name too")
    assert lines[1] == "algo-2 set 1: not part of a restore: only-2.pt: is missing"
    assert lines[2].startswith("whole: 2 sets, 3 files")


def test_verify_can_be_limited_to_one_host_or_one_set(service, job, prefix):
    prefix.commit("algo-1", 1, {"a": b"one"})
    prefix.commit("algo-1", 2, {"a": b"two!"})
    prefix.commit("algo-2", 2, {"b": b"two"}, aside=True)
    assert verify(service, job, "--host", "algo-1") == (
        0,
        ["whole: 1 set, 1 file, 4 B read; 1 file closed by the writer"],
    )
    code, lines = verify(service, job, "--set", "1")
    assert (code, lines[0]) == (1, "algo-1 set 1: a: has 4 bytes, expected 3")
    code, lines = verify(service, job, "--set", "2")
    assert (code, lines[-1].partition(",")[0]) == (0, "whole: 2 sets")
    for arguments, words in (
        (("--set", "7"), "there is no set 7 of"),
        (("--host", "algo-9"), "has no set of checkpoints of host 'algo-9'; there are sets of algo-1, algo-2"),
    ):
        missing = service.clary("checkpoints", "verify", job, *arguments, check=False)
        assert (missing.returncode, missing.stdout) == (3, "")
        assert words in missing.stderr


@pytest.mark.long(15)
def test_hostile_and_damaged_manifests_are_listed_without_control_characters(service, job, prefix):
    prefix.commit("algo-1", 1, {"a": b"1"})
    prefix.commit("algo-2", 1, {"b": b"1"}, aside=True)
    hostile = CheckpointFile(path="\x1b[2J\x07", size_bytes=1, sha256="0" * 64, key="../../../clary/secret")
    prefix.commit("algo-3", 1, {}, files=(hostile,))
    absurd = CheckpointFile(path="a", size_bytes=1 << 49, sha256="0" * 64, key="a")
    odd = CheckpointFile(path="o\x1b[31m", size_bytes=1, sha256="0" * 64, key="o\x1b[31m")
    prefix.commit("algo-4", 1, {}, files=(absurd, odd), job_arn="arn:x:training-job/\x1b]0;title\x07")
    prefix.put(manifest_key("algo-5", 1), b'{"sha256": "0", "set": {"host": "\x1b[0m"')
    prefix.put(manifest_key("algo-6", 1), b"[" * 200_000)
    states = {row[0]: row[-1].partition(":")[0] for row in rows(service, job)}
    assert states == {
        "algo-1": "whole",
        "algo-2": "whole",
        "algo-3": "damaged",
        "algo-4": "incomplete",
        "algo-5": "damaged",
        "algo-6": "damaged",
    }
    code, lines = verify(service, job)
    text = "\n".join([*lines, service.clary("checkpoints", job).stdout, service.clary("describe", job).stdout])
    assert code == 1
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "is neither its path nor" in text
    assert "algo-4 set 1: a: has 1 bytes, expected 562949953421312" in lines
    assert "algo-4 set 1: o\\x1b[31m: is missing" in lines
    assert lines[-1].startswith("not whole: algo-3 set 1, algo-4 set 1, algo-5 set 1, algo-6 set 1 (6 sets, ")


@pytest.mark.long(15)
def test_all_objects_are_seen_if_a_listing_has_several_pages(service, job, prefix):
    files = {f"shard-{number:04d}/part": str(number).encode() for number in range(1050)}
    prefix.commit("algo-1", 1, files)
    assert rows(service, job)[0][4:] == ["1050", "3.1 kB", "1", "1050 closed", "whole"]
    assert verify(service, job)[1][-1].startswith("whole: 1 set, 1050 files, ")


def test_a_file_larger_than_any_answer_held_in_memory_is_read_in_pieces(service, job, prefix):
    body = hashlib.sha256(b"seed").digest() * (48 * MIB // 32)
    prefix.commit("algo-1", 1, {"big": body})
    assert verify(service, job) == (0, ["whole: 1 set, 1 file, 50.3 MB read; 1 file closed by the writer"])
    prefix.put("big", body[:-1] + b"!")
    assert verify(service, job)[0] == 1


def test_a_missing_set_config_or_job_gives_different_errors(service, aws, job, prefix):
    assert service.clary("checkpoints", job).stdout.startswith(
        f"no set of checkpoints of {job} below s3://{BUCKET}/ckpt/"
    )
    nothing = service.clary("checkpoints", "verify", job, check=False)
    assert (nothing.returncode, "has been committed yet" in nothing.stderr) == (3, True)
    name = unique("cli-no-checkpoints")
    aws.sagemaker.create_training_job(**job_request(name, "true"))
    for arguments in ((name,), ("verify", name)):
        without = service.clary("checkpoints", *arguments, check=False)
        assert (without.returncode, without.stdout) == (3, "")
        assert f"{name} has no CheckpointConfig: its checkpoints are not mirrored to S3" in without.stderr
    wait(aws, name)
    unknown = service.clary("checkpoints", "no-such-job", check=False)
    assert (unknown.returncode, unknown.stderr) == (3, "clary: there is no training job 'no-such-job'\n")


MIRRORED = (
    "cd /opt/ml/checkpoints; mkdir epoch-1; head -c 300000 /dev/urandom > epoch-1/model.pt; hostname > last-$(hostname)"
)


def test_sets_mirrored_by_agents_are_listed_verified_and_described(service, aws):
    name = unique("cli-mirrored")
    config = {"S3Uri": f"s3://{BUCKET}/ckpt/{name}"}
    request = job_request(name, MIRRORED, CheckpointConfig=config)
    request["ResourceConfig"]["InstanceCount"] = 2
    aws.sagemaker.create_training_job(**request)
    facts = wait(aws, name)
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    newest = {}
    for row in reversed(rows(service, name)):
        newest[row[0]] = row
    assert [newest[host][4:7] for host in ("algo-1", "algo-2")] == [["2", "300.0 kB", "1"]] * 2
    assert [newest[host][-1] for host in ("algo-1", "algo-2")] == ["whole"] * 2
    code, lines = verify(service, name)
    assert (code, lines[-1].startswith("whole: 2 sets, 4 files, ")) == (0, True), lines
    (clash,) = [line for line in lines if "epoch-1/model.pt" in line]
    assert clash.startswith("algo-2 set ")
    assert clash.endswith("; algo-1 has a file of this name too")
    for text in (service.clary("checkpoints", name).stdout, service.clary("describe", name).stdout):
        for host in ("algo-1", "algo-2"):
            assert re.search(rf"^ *{host}: set {newest[host][1]}, committed .* ago; nothing changed since$", text, re.M)
