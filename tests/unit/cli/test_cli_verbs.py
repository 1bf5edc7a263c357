"""wait, delete, rerun and cp without a service: their requests, output and exit codes."""

import contextlib
import json
from types import SimpleNamespace

import pytest

from clary.base.errors import ClaryError, WireError
from clary.cli import copying
from clary.cli.main import main
from clary.contract.launch_plan import Credentials
from clary.contract.object_store import ObjectInfo


class FakeService:
    """Answers calls and pages from tables; items of a list are returned in turn, and errors are raised."""

    def __init__(self, calls=None, pages=None):
        self.calls, self.pages, self.asked = calls or {}, pages or {}, []

    def again(self):
        return self

    def call(self, operation, parameters):
        self.asked.append((operation, dict(parameters)))
        return self._next(self.calls, operation)

    def job_page(self, job, page="", query=None):
        self.asked.append((job, page, dict(query or {})))
        return self._next(self.pages, page)

    def _next(self, table, key):
        answer = table[key]
        answer = answer.pop(0) if isinstance(answer, list) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer


def use(monkeypatch, verb, **tables):
    fake = FakeService(**tables)
    monkeypatch.setattr(f"clary.cli.{verb}.connect", lambda: fake)
    monkeypatch.setattr(f"clary.cli.{verb}.POLL_S", 0.0, raising=False)
    return fake


def told(state, secondary="", status="", failure_reason=""):
    return {
        "status": status or state,
        "secondary_status": secondary or state,
        "state": state,
        "failure_reason": failure_reason,
    }


RUNNING, PENDING = told("Running", "Training", "InProgress"), told("Queued", "Pending", "InProgress")
CAME = told("Queued", "Starting", "InProgress")  # no hosts have been requested yet
FAILED = told("Failed", failure_reason="AlgorithmError: boom")
GONE = WireError("NotFound", "there is no training job 'x'")


@pytest.mark.parametrize(
    ("arguments", "answers", "code", "line"),
    [
        ("x", [PENDING, RUNNING, told("Completed")], 0, "x is Completed"),
        ("x", [FAILED], 1, "x is Failed: AlgorithmError: boom"),
        ("x", [told("Stopped")], 1, "x is Stopped"),
        ("x --for Stopped", [told("Stopping"), told("Stopped")], 0, "x is Stopped"),
        ("x --for Running", [PENDING, RUNNING], 0, "x is Running"),
        ("x --for Running", [told("Completed")], 0, "x is Completed"),
        ("x --for Running", [FAILED], 1, "x is Failed: AlgorithmError: boom"),
        ("x --timeout 0", [RUNNING], 124, "x is Running"),
        ("x --for Starting --timeout 0", [CAME], 124, "x is Queued"),
    ],
)
def test_wait_ends_when_the_job_reaches_or_can_no_longer_reach_the_state(
    monkeypatch, capsys, arguments, answers, code, line
):
    use(monkeypatch, "wait", pages={"state": answers})
    assert main(["wait", *arguments.split()]) == code
    assert capsys.readouterr().out == f"{line}\n"
    assert answers == []


def test_a_job_that_reached_its_state_has_not_ended(monkeypatch, capsys):
    use(monkeypatch, "wait", pages={"state": [RUNNING]})
    assert main(["wait", "x", "--for", "Running", "--json"]) == 0
    (job,) = json.loads(capsys.readouterr().out)
    assert (job["State"], job["Reached"], job["Ended"]) == ("Running", True, False)


def test_wait_for_several_waits_for_all_and_fails_with_one(monkeypatch, capsys):
    use(monkeypatch, "wait", pages={"state": [told("Completed"), RUNNING, FAILED]})
    assert main(["wait", "a", "b", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(job["TrainingJobName"], job["State"], job["Reached"]) for job in found] == [
        ("a", "Completed", True),
        ("b", "Failed", False),
    ]


@pytest.mark.parametrize("seconds", ["-1", "soon", "inf", "nan"])
def test_wait_takes_seconds_alone(seconds):
    with pytest.raises(SystemExit):
        main(["wait", "x", f"--timeout={seconds}"])


def test_wait_for_a_missing_job_is_an_error(monkeypatch):
    use(monkeypatch, "wait", pages={"state": GONE})
    assert main(["wait", "x"]) == 3


def test_delete_continues_after_a_job_that_cannot_be_deleted(monkeypatch, capsys):
    refused = WireError("ValidationException", "in status InProgress")
    fake = use(monkeypatch, "delete", calls={"DeleteTrainingJob": [{}, refused, {}]})
    assert main(["delete", "a", "b", "c"]) == 1
    said = capsys.readouterr()
    assert said.out == "a is deleted; what it wrote to S3 stays\nc is deleted; what it wrote to S3 stays\n"
    assert said.err == "clary: b is not deleted: in status InProgress\n"
    assert len(fake.asked) == 3


def test_delete_of_a_missing_job_is_an_error_unless_ignored(monkeypatch, capsys):
    use(monkeypatch, "delete", calls={"DeleteTrainingJob": GONE})
    assert main(["delete", "x"]) == 3
    capsys.readouterr()
    assert main(["delete", "x", "--ignore-not-found", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["Deleted"] is False


def test_delete_stops_a_job_first_if_asked_and_waits_for_its_end(monkeypatch):
    states = [{"TrainingJobStatus": status} for status in ("InProgress", "Stopping", "Stopped")]
    calls = {"DescribeTrainingJob": states, "StopTrainingJob": {}, "DeleteTrainingJob": {}}
    fake = use(monkeypatch, "delete", calls=calls)
    assert main(["delete", "x", "--stop"]) == 0
    operations = [asked[0] for asked in fake.asked]
    assert operations.count("StopTrainingJob") == 1
    assert operations[-1] == "DeleteTrainingJob"


REQUEST = {
    "TrainingJobName": "fit-001",
    "HyperParameters": {"lr": "0.1"},
    "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1},
    "OutputDataConfig": {"S3OutputPath": "s3://b/out"},
    "CheckpointConfig": {"S3Uri": "s3://b/ckpt"},
}


def test_rerun_creates_the_job_with_changes_and_its_tags(monkeypatch, capsys):
    pages = {"request": {"request": REQUEST}, "": {"arn": "arn:x"}}
    tags = [{"Key": "team", "Value": "a"}]
    calls = {"ListTags": {"Tags": tags}, "CreateTrainingJob": {"TrainingJobArn": "arn:new"}}
    fake = use(monkeypatch, "rerun", calls=calls, pages=pages)
    arguments = ["--name", "again", "-p", "lr=0.01", "-e", "A=b=c", "--instance-count", "2"]
    assert main(["rerun", "fit-001", *arguments]) == 0
    sent = fake.asked[-1][1]
    assert (sent["TrainingJobName"], sent["HyperParameters"], sent["Tags"]) == ("again", {"lr": "0.01"}, tags)
    assert (sent["Environment"], sent["ResourceConfig"]["InstanceCount"]) == ({"A": "b=c"}, 2)
    assert "it goes on from the checkpoints of the job before, at s3://b/ckpt" in capsys.readouterr().out


def test_rerun_as_a_rehearsal_of_itself_prints_the_request_and_creates_nothing(monkeypatch, capsys):
    fake = use(monkeypatch, "rerun", pages={"request": {"request": REQUEST}})
    assert main(["rerun", "fit-001", "--dry-run"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["TrainingJobName"].startswith("fit-001-20")
    assert len(fake.asked) == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("my-job", "expected JOB:WHAT"),
        (":model", "expected JOB:WHAT"),
        ("my-job:modle", "did you mean 'model'?"),
    ],
)
def test_cp_lists_what_can_be_copied(source, words, capsys):
    assert main(["cp", source, "."]) == 2
    assert words in capsys.readouterr().err


def test_cp_unpacks_archives_alone(capsys):
    assert main(["cp", "x:logs", ".", "-x"]) == 2
    assert "--extract belongs to archives" in capsys.readouterr().err


class FakeStore:
    """Holds objects by key; a downloaded file contains its key."""

    def __init__(self, *keys):
        self._objects = [ObjectInfo(key=key, size_bytes=len(key), etag='"e"') for key in keys]

    def list_objects(self, bucket, prefix):
        return iter([item for item in self._objects if item.key.startswith(prefix)])

    def head(self, bucket, key):
        return next((item for item in self._objects if item.key == key), None)

    def download(self, bucket, key, path, *, size_bytes, etag):
        path.write_text(key)
        return size_bytes


def fetched(store, uri, target):
    return [item.path for item in copying.fetch(store, uri, target, unpacks=False, what="the model of x")]


def test_an_archive_is_copied_into_a_folder_or_to_the_given_name(tmp_path):
    store = FakeStore("out/x/model.tar.gz")
    assert fetched(store, "s3://b/out/x/model.tar.gz", tmp_path) == [tmp_path / "model.tar.gz"]
    assert fetched(store, "s3://b/out/x/model.tar.gz", tmp_path / "new" / "m.tgz") == [tmp_path / "new" / "m.tgz"]


LOG_PAGES = {
    "log-lines": {"hosts": ["algo-1"]},
    "logs": {"lines": [{"text": "hello"}], "sure_until_ms": None, "tokens": {}},
}


@pytest.fixture
def serve_copies(monkeypatch, tmp_path):
    """Let `cp` find a job with a model, checkpoints and a log; it runs in `tmp_path`."""
    fake = use(monkeypatch, "cp", pages={**LOG_PAGES, "request": {"request": REQUEST}})
    fake.record = SimpleNamespace(url="http://127.0.0.1:9", region="us-west-2")
    fake.secrets = SimpleNamespace(credentials=Credentials(access_key_id="a", secret_access_key="b"))
    fake.trusted = contextlib.nullcontext
    store = FakeStore("out/fit-001/output/model.tar.gz", "ckpt/a.pt")
    monkeypatch.setattr("clary.cli.cp.ObjectStore", lambda endpoint: contextlib.nullcontext(store))
    monkeypatch.chdir(tmp_path)


def test_cp_makes_the_folder_that_a_slash_at_the_end_asks_for(serve_copies, tmp_path):
    assert main(["cp", "x:model", "new/"]) == 0
    assert (tmp_path / "new" / "model.tar.gz").is_file()


def test_cp_prints_a_line_for_each_file_whatever_a_program_has_called_its_objects(serve_copies, monkeypatch, capsys):
    store = FakeStore("ckpt/a\nfixed/b.pt  5 B\x1b[2J")
    monkeypatch.setattr("clary.cli.cp.ObjectStore", lambda endpoint: contextlib.nullcontext(store))
    assert main(["cp", "x:checkpoints", "here"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("here/a\\nfixed/b.pt  5 B\\x1b[2J  ")


@pytest.mark.parametrize(
    ("source", "dest", "words"),
    [
        ("x:logs", "taken", "taken is a file: logs are copied into a folder, as a file for each host"),
        ("x:logs", "taken/logs", "taken/logs cannot be written: Not a directory"),
        ("x:logs", "full", "full/algo-1.log cannot be written: Is a directory"),
        ("x:model", "taken/", "cannot be written: "),
        ("x:model", "taken/m.tgz", "cannot be written: "),
        ("x:checkpoints", "taken", "cannot be written: "),
    ],
)
def test_cp_says_why_the_destination_cannot_be_written(serve_copies, tmp_path, capsys, source, dest, words):
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "full" / "algo-1.log").mkdir(parents=True)
    assert main(["cp", source, dest]) == 2
    assert words in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_prefix_keeps_its_tree_without_what_is_clarys_own(tmp_path):
    store = FakeStore("c/step-1/a.pt", "c/.clary-checkpoints/algo-1/set-00000001.json", "c/folder/", "cc/other")
    assert fetched(store, "s3://b/c/", tmp_path / "ckpt") == [tmp_path / "ckpt" / "step-1" / "a.pt"]


@pytest.mark.parametrize("key", ["c/../x", "c/a//b", "c/./x", "c//etc/passwd"])
def test_no_key_leads_out_of_the_folder(tmp_path, key):
    with pytest.raises(ClaryError, match="is not a path of a file below a folder"):
        fetched(FakeStore(key), "s3://b/c/", tmp_path / "ckpt")
    assert not list(tmp_path.rglob("passwd"))


def test_a_missing_object_is_reported_with_its_uri(tmp_path):
    for uri in ("s3://b/none.tar.gz", "s3://b/none/"):
        with pytest.raises(WireError, match="the model of x does not exist") as caught:
            fetched(FakeStore(), uri, tmp_path)
        assert caught.value.code == "NotFound"


def test_the_uri_of_each_output_follows_from_the_request():
    sent = {**REQUEST, "HyperParameters": {"sagemaker_submit_directory": '"s3://b/code.tar.gz"'}}
    connection = SimpleNamespace(job_page=lambda job, page: {"request": sent})
    places = {
        thing: copying.place_of(connection, "fit-001", thing) for thing in ("model", "output", "checkpoints", "code")
    }
    assert places == {
        "model": "s3://b/out/fit-001/output/model.tar.gz",
        "output": "s3://b/out/fit-001/output/output.tar.gz",
        "checkpoints": "s3://b/ckpt/",
        "code": "s3://b/code.tar.gz",
    }
