"""Remote services: the choice of a service, refusals, and the storage and use of keys."""

import http.server
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from clary.base.errors import ClaryError
from clary.cli import contexts
from clary.cli.connection import connect
from clary.cli.main import main
from clary.control.settings import load_settings, unknown_variables

SERVICE = {
    "url": "https://gpu1:4571",
    "access_key_id": "K",
    "secret_access_key": "hidden-secret",
    "admin_token": "hidden-token",
}
NAMES = ("CLARY_CONTEXT", "CLARY_URL", "CLARY_ADMIN_TOKEN", "CLARY_CA_FILE", "CLARY_PLAIN_HTTP")


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in (*NAMES, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLARY_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def office(home, tmp_path):
    (tmp_path / "office.json").write_text(json.dumps(SERVICE))
    assert main(["context", "add", "office", str(tmp_path / "office.json")]) == 0
    return "office"


def listed(capsys):
    capsys.readouterr()
    assert main(["context", "--json"]) == 0
    return {one["name"]: one["is_current"] for one in json.loads(capsys.readouterr().out)}


def test_a_context_is_added_used_and_removed(office, home, capsys):
    assert listed(capsys) == {"local": True, "office": False}
    assert main(["context", "use", "office"]) == 0
    assert listed(capsys) == {"local": False, "office": True}
    assert connect().record.url == "https://gpu1:4571"
    assert main(["context", "remove", "office"]) == 0
    assert listed(capsys) == {"local": True}


def test_keys_are_stored_in_a_private_file_and_not_printed(office, home, capsys):
    file = home / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert main(["context"]) == 0
    assert "hidden" not in capsys.readouterr().out
    file.chmod(0o644)
    assert main(["context"]) == 2
    assert "others can read it" in capsys.readouterr().err


def test_the_option_comes_before_the_variable_and_the_variable_before_the_file(office, home, monkeypatch):
    settings = load_settings()
    main(["context", "use", "office"])
    assert contexts.chosen_service(settings)[0] == "office"
    monkeypatch.setenv("CLARY_URL", "http://127.0.0.1:5")
    monkeypatch.setenv("CLARY_ADMIN_TOKEN", "t")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert contexts.chosen_service(settings)[1].url == "http://127.0.0.1:5"
    monkeypatch.setenv("CLARY_CONTEXT", "office")
    assert contexts.chosen_service(settings)[0] == "office"
    with contexts.chosen_context("local"):
        assert contexts.chosen_service(settings) is None
    assert contexts.chosen_service(settings)[0] == "office"


def test_an_unknown_context_is_answered_with_the_known_names(office, capsys):
    assert main(["--context", "offcie", "jobs"]) == 3
    assert "there is no context 'offcie'; there are local, office; did you mean 'office'?" in capsys.readouterr().err


def test_a_url_without_keys_is_refused_with_the_missing_keys(home, monkeypatch, capsys):
    monkeypatch.setenv("CLARY_URL", "https://gpu1")
    assert main(["jobs"]) == 2
    assert "CLARY_ADMIN_TOKEN, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY are not set" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["gpu1:4570", "ftp://gpu1", "https://", "https://gpu1/path"])
def test_an_invalid_address_is_refused(home, url):
    with pytest.raises(ClaryError, match="expected http://host:port"):
        contexts.RemoteService(**{**SERVICE, "url": url}).check("x")


def test_keys_do_not_go_over_a_network_in_the_clear_unless_that_is_allowed(home):
    plain = {**SERVICE, "url": "http://10.0.0.5:4570"}
    with pytest.raises(ClaryError, match="in the clear"):
        contexts.RemoteService(**plain).check("x")
    contexts.RemoteService(**plain, plain_http=True).check("x")
    for here in ("http://127.0.0.1:4570", "http://localhost:4570", "http://[::1]:4570"):
        contexts.RemoteService(**{**SERVICE, "url": here}).check("x")


@pytest.mark.parametrize(
    "command", ["up", "down", "doctor", "backup", "backup list", "backup make", "backup restore", "backup restore x"]
)
def test_commands_for_this_machine_are_refused_for_a_remote_service(office, command, capsys):
    for chosen in (["--context", "office"], []):
        assert main([*chosen, *command.split()]) == 2
        assert f"clary {command.split()[0]} acts on this machine" in capsys.readouterr().err
        assert main(["context", "use", "office"]) == 0


def test_a_restore_for_a_remote_service_leaves_the_local_database_alone(office, home):
    home.mkdir(exist_ok=True)
    database = home / "clary.db"
    database.write_bytes(b"here")
    assert main(["--context", "office", "backup", "restore"]) == 2
    assert database.read_bytes() == b"here"


def test_a_command_asks_the_service_of_its_context_with_its_token(home, tmp_path, capsys):
    seen = []

    class FakeRemote(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, self.headers["authorization"]))
            body = json.dumps({"jobs": [], "next": None, "total": 0, "states": {}, "problems": []}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), FakeRemote) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        service = {**SERVICE, "url": f"http://127.0.0.1:{server.server_port}"}
        (tmp_path / "near.json").write_text(json.dumps(service))
        assert main(["context", "add", "near", str(tmp_path / "near.json")]) == 0
        assert main(["--context", "near", "jobs"]) == 0
        server.shutdown()
        thread.join()
    assert seen[0] == ("/clary/v1/jobs?limit=20", "Bearer hidden-token")


@pytest.mark.parametrize("text", ["", "[]", '{"url": "x"}', '{"url": 1}'])
def test_an_invalid_export_is_refused(home, tmp_path, text, capsys):
    (tmp_path / "bad.json").write_text(text)
    assert main(["context", "add", "bad", str(tmp_path / "bad.json")]) == 2
    assert "expected what `clary context export` prints" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changed",
    [
        {"region": "us-west-2\ncredential_process = touch here"},
        {"access_key_id": "K\r[plugins]"},
        {"secret_access_key": "s\u2028t"},
        {"admin_token": "a\nb"},
        {"url": "https://gpu1:4571\n"},
        {"url": "https://gpu1:4571?\ncredential_process = touch here"},
        {"default_bucket": "a\x1b[2J"},
        {"ca_file": "ca\n.pem"},
    ],
    ids=ascii,
)
def test_an_export_cannot_add_lines_to_files_of_other_clients(home, tmp_path, changed, capsys):
    (tmp_path / "bad.json").write_text(json.dumps(SERVICE | changed))
    assert main(["context", "add", "bad", str(tmp_path / "bad.json")]) == 2
    error = capsys.readouterr().err
    assert f"context bad: {next(iter(changed))} has a character that cannot be printed" in error
    assert "hidden" not in error
    assert not (home / "contexts.json").exists()


@pytest.mark.parametrize("name", ["local", "a b", "../x", ""])
def test_an_invalid_name_is_refused(home, tmp_path, name):
    (tmp_path / "one.json").write_text(json.dumps(SERVICE))
    assert main(["context", "add", name, str(tmp_path / "one.json")]) == 2


def test_variables_for_clients_point_to_the_remote_service(office, home, capsys):
    assert main(["--context", "office", "env", "--json"]) == 0
    variables = json.loads(capsys.readouterr().out)
    assert variables["AWS_ENDPOINT_URL"] == "https://gpu1:4571"
    assert "contexts/office/client/sagemaker-config.yaml" in variables["SAGEMAKER_ADMIN_CONFIG_OVERRIDE"]
    assert "https://gpu1:4571" in Path(variables["AWS_CONFIG_FILE"]).read_text()
    assert SERVICE["secret_access_key"] in Path(variables["AWS_SHARED_CREDENTIALS_FILE"]).read_text()


def test_a_removed_context_leaves_no_keys_behind(office, home, capsys):
    assert main(["--context", "office", "env"]) == 0
    assert main(["context", "remove", "office"]) == 0
    texts = [path.read_text() for path in home.rglob("*") if path.is_file()]
    assert not [text for text in texts if SERVICE["secret_access_key"] in text]


def test_keys_that_only_the_environment_has_are_not_written_to_a_file(home, monkeypatch, capsys):
    for name, value in (
        ("CLARY_URL", "https://gpu1:4571"),
        ("CLARY_ADMIN_TOKEN", "hidden-token"),
        ("AWS_ACCESS_KEY_ID", "AKHIDDEN"),
        ("AWS_SECRET_ACCESS_KEY", "hidden-secret"),
    ):
        monkeypatch.setenv(name, value)
    assert main(["env", "--json", "--profile", "my"]) == 0
    output = capsys.readouterr()
    assert "the profile my has no keys" in output.err
    variables = json.loads(output.out)
    assert "https://gpu1:4571" in Path(variables["AWS_CONFIG_FILE"]).read_text()
    texts = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert not [text for text in texts if b"hidden-secret" in text or b"AKHIDDEN" in text]


def test_a_misspelt_setting_variable_is_reported_and_our_variables_are_not():
    slips = unknown_variables({"CLARY_MAX_HOST": "2", "CLARY_PORT": "1", "PATH": "x"})
    assert slips == ["CLARY_MAX_HOST is no setting and has no effect; did you mean CLARY_MAX_HOSTS?"]
    ours = ("URL", "CONTEXT", "ADMIN_TOKEN", "CA_FILE", "PLAIN_HTTP", "CUDA_ON_CPU", "REHEARSAL", "STEPS_FOLDER")
    assert unknown_variables({f"CLARY_{name}": "1" for name in ours}) == []


def test_keys_of_contexts_are_on_the_disk_when_a_command_ends(office, home, monkeypatch):
    """Otherwise a power cut could leave an empty file, without any of the keys."""
    forced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (forced.append(os.readlink(f"/proc/self/fd/{file}")), real(file)))
    assert main(["context", "use", office]) == 0
    assert any(Path(path).name.startswith("contexts.json.") for path in forced)
    assert str(home) in forced
    assert stat.S_IMODE((home / "contexts.json").stat().st_mode) == 0o600
