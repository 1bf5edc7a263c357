"""`clary env`: the environment after its lines in sh, fish and csh, and the server that real clients then ask."""

import json
import os
import subprocess
import sys

import botocore.session
import pytest

from clary.base.processes import ProcessId
from clary.cli import env
from clary.cli.main import main
from clary.control.state_folder import ServiceRecord, StateFolder

URL = "http://127.0.0.1:9"
FOREIGN = ("CLARY_", "AWS_", "WR_", "FSSPEC_")
READING = {
    "sh": ("sh", "-c", 'eval "$(cat)"; env -0'),
    "fish": ("fish", "-c", "cat | source; env -0"),
    "csh": ("tcsh", "-f", "-c", "eval `cat`; env -0"),
}
OFFICE = {"url": "https://gpu1:4571", "access_key_id": "K", "secret_access_key": "s", "admin_token": "t"}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The state folder; the environment has no variable that `clary env` looks at."""
    for name in [name for name in os.environ if name.startswith(FOREIGN) or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLARY_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(env, "calling_shell", lambda: "sh")
    return tmp_path / "state"


def record(home, *, url=URL, proxy_url="", tls_url=""):
    folder = StateFolder(home)
    folder.create()
    folder.load_secrets()
    own = ProcessId.of(os.getpid())
    folder.write_service_record(
        ServiceRecord(
            pid=own.pid,
            process_started=own.started,
            url=url,
            tls_url=tls_url,
            proxy_url=proxy_url,
            region="us-west-2",
            version="0",
        )
    )
    return folder


def add_office(tmp_path, *arguments):
    (tmp_path / "office.json").write_text(json.dumps(OFFICE))
    assert main(["context", "add", "office", str(tmp_path / "office.json"), *arguments]) == 0


def printed(capsys, *arguments):
    """Return the lines of `clary env`."""
    capsys.readouterr()
    assert main([*arguments] if "env" in arguments else ["env", *arguments]) == 0
    return capsys.readouterr().out


def after(script, shell="sh"):
    """Return the environment of a shell that started with this process's and has read the lines as documented."""
    said = subprocess.run(READING[shell], input=script.encode(), capture_output=True, check=True, timeout=30)
    assert said.stderr == b""
    return dict(line.split("=", 1) for line in said.stdout.decode().split("\0") if line)


def requests_of_boto(variables, monkeypatch):
    """Return the address, and the headers, of each request that botocore sends with these variables."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    sent = []

    def stop(request, **_):
        sent.append((request.url, dict(request.headers)))
        raise InterruptedError

    session = botocore.session.Session()
    for service, operation in (("s3", "list_buckets"), ("sagemaker", "list_training_jobs")):
        client = session.create_client(service)
        client.meta.events.register("before-send", stop)
        with pytest.raises(InterruptedError):
            getattr(client, operation)()
    return sent


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_ENDPOINT_URL_S3", "https://minio.corp:9000"),
        ("AWS_ENDPOINT_URL_SAGEMAKER", "https://api.sagemaker.us-west-2.amazonaws.com"),
        ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true"),
        ("AWS_SECURITY_TOKEN", "foreign"),
        ("AWS_SESSION_TOKEN", "foreign"),
        ("AWS_CREDENTIAL_EXPIRATION", "2020-01-01T00:00:00Z"),
    ],
)
def test_no_variable_of_the_caller_leads_a_client_elsewhere_or_adds_to_its_keys(home, capsys, monkeypatch, name, value):
    folder = record(home)
    monkeypatch.setenv(name, value)
    sent = requests_of_boto(after(printed(capsys)), monkeypatch)
    keys = folder.read_secrets().credentials
    assert len(sent) == 2
    for url, headers in sent:
        assert url.startswith(f"{URL}/")
        assert keys.access_key_id.encode() in headers["Authorization"]
        assert not [header for header in headers if header.lower() == "x-amz-security-token"]


def test_a_comment_says_which_variables_of_the_caller_are_unset_and_why(home, capsys, monkeypatch):
    record(home)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://minio")
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", "true")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.170.23/v1/credentials")
    text = printed(capsys)
    assert text.splitlines()[-3:] == [
        "# AWS_CONTAINER_CREDENTIALS_FULL_URI is unset: it would lead clients to other keys",
        "# AWS_ENDPOINT_URL_S3 is unset: it would lead clients to another server",
        "# AWS_USE_FIPS_ENDPOINT is unset: it would lead clients to AWS's own addresses",
    ]
    assert "minio" not in text
    assert not {"AWS_ENDPOINT_URL_S3", "AWS_USE_FIPS_ENDPOINT", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} & set(after(text))
    add_office(home.parent)
    assert "# AWS_ENDPOINT_URL_S3 is unset" in printed(capsys, "--context", "office", "env")


def test_json_names_the_variables_that_its_reader_has_to_remove(home, capsys, monkeypatch):
    record(home)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://minio")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "foreign")
    assert main(["env", "--json"]) == 0
    output = capsys.readouterr()
    assert "AWS_ENDPOINT_URL" in json.loads(output.out)
    assert output.err.startswith("clary: AWS_SESSION_TOKEN, AWS_ENDPOINT_URL_S3 ")


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"])
def test_the_callers_proxy_is_not_used_for_the_service(home, capsys, monkeypatch, name):
    record(home, url="http://10.1.2.3:9")
    assert "NO_PROXY" not in printed(capsys)
    monkeypatch.setenv(name, "http://proxy.corp:3128")
    monkeypatch.setenv("NO_PROXY", "intranet")
    variables = after(printed(capsys))
    assert variables["NO_PROXY"] == variables["no_proxy"] == "intranet,localhost,127.0.0.1,::1,10.1.2.3"
    assert variables[name] == "http://proxy.corp:3128"
    add_office(home.parent)
    elsewhere = after(printed(capsys, "--context", "office", "env"))
    assert elsewhere["no_proxy"] == "intranet,localhost,127.0.0.1,::1,gpu1"


def test_a_shell_that_leaves_tls_keeps_the_exceptions_of_the_callers_other_proxy(home, capsys, monkeypatch):
    record(home)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(home / "tls" / "ca.pem"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:2")
    monkeypatch.setenv("NO_PROXY", "intranet,localhost")
    assert not {"AWS_CA_BUNDLE", "HTTPS_PROXY", "NO_PROXY"} & set(after(printed(capsys)))
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.corp:3128")
    for arguments in ((), ("--unset",)):
        variables = after(printed(capsys, *arguments))
        assert not {"AWS_CA_BUNDLE", "HTTPS_PROXY"} & set(variables)
        assert variables["HTTP_PROXY"] == "http://proxy.corp:3128"
        assert variables["NO_PROXY"].startswith("intranet,localhost")


def test_with_tls_the_callers_exceptions_do_not_lead_around_the_service_to_aws(home, capsys, monkeypatch):
    record(home, proxy_url="http://127.0.0.1:2", tls_url="https://localhost:4571")
    monkeypatch.setenv("NO_PROXY", "intranet,.amazonaws.com,sts.us-west-2.amazonaws.com:443,*")
    text = printed(capsys, "--tls")
    assert after(text)["NO_PROXY"] == "intranet,localhost,127.0.0.1,::1"
    assert text.splitlines()[-1] == (
        "# NO_PROXY loses '.amazonaws.com', 'sts.us-west-2.amazonaws.com:443', '*': with --tls, AWS's names lead to "
        "this service through its proxy"
    )


@pytest.mark.parametrize("place", ["context", "CLARY_CA_FILE"])
def test_the_certificate_bundle_of_a_service_elsewhere_goes_with_its_other_variables(
    home, tmp_path, capsys, monkeypatch, place
):
    record(home)
    bundle = str(tmp_path / "office.pem")
    if place == "context":
        add_office(tmp_path, "--ca-file", bundle)
        assert f"export AWS_CA_BUNDLE={bundle}" in printed(capsys, "--context", "office", "env")
    else:
        monkeypatch.setenv("CLARY_CA_FILE", bundle)
    monkeypatch.setenv("AWS_CA_BUNDLE", bundle)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.corp:3128")
    for arguments in ((), ("--unset",)):
        variables = after(printed(capsys, *arguments))
        assert "AWS_CA_BUNDLE" not in variables
        assert variables["HTTPS_PROXY"] == "http://proxy.corp:3128"


def test_a_service_elsewhere_without_a_bundle_leaves_none_of_another_service(home, tmp_path, capsys, monkeypatch):
    record(home)
    add_office(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(home / "tls" / "ca.pem"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:2")
    assert not {"AWS_CA_BUNDLE", "HTTPS_PROXY"} & set(after(printed(capsys, "--context", "office", "env")))


def test_unset_works_and_says_so_while_the_contexts_cannot_be_read(home, capsys, monkeypatch):
    home.mkdir()
    (home / "contexts.json").touch(mode=0o600)
    monkeypatch.setenv("AWS_CA_BUNDLE", "/of/office.pem")
    assert main(["env", "--unset"]) == 0
    output = capsys.readouterr()
    assert "AWS_CA_BUNDLE" not in output.out
    assert "contexts.json does not hold contexts" in output.err


ODD = 'it\'s $HOME; *[a]? ~ \\ !x `y` "z" #k  two & ü'


@pytest.mark.parametrize(
    "shell",
    [
        pytest.param("sh"),
        pytest.param("fish", marks=pytest.mark.needs("fish")),
        pytest.param("csh", marks=pytest.mark.needs("tcsh")),
    ],
)
def test_each_shell_sets_and_unsets_the_variables_with_any_text(home, tmp_path, capsys, monkeypatch, shell):
    odd = tmp_path / ODD
    monkeypatch.setenv("CLARY_HOME", str(odd))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://minio")
    record(odd, url="http://[::1]:4570")

    variables = after(printed(capsys, "--shell", shell), shell)
    assert variables["AWS_ENDPOINT_URL"] == "http://[::1]:4570"
    assert variables["AWS_CONFIG_FILE"] == str(odd / "client" / "aws-config")
    assert not {"AWS_PROFILE", "AWS_ENDPOINT_URL_S3"} & set(variables)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    left = after(printed(capsys, "--shell", shell, "--unset"), shell)
    assert not [name for name in left if name.startswith("AWS_") and name not in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3")]


@pytest.mark.needs("fish")
def test_fish_reports_a_universal_variable_that_it_would_not_unset_for_other_shells(
    home, tmp_path, capsys, monkeypatch
):
    record(home)
    monkeypatch.setenv("HOME", str(tmp_path))
    lines = printed(capsys, "--shell", "fish")
    script = f"set -Ux AWS_PROFILE mine; set -gx AWS_SESSION_TOKEN foreign\n{lines}\nenv"
    said = subprocess.run(["fish", "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert said.stderr == (
        "clary: AWS_PROFILE is a universal variable of fish and stays: set -e -U AWS_PROFILE removes it\n"
    )
    assert "AWS_PROFILE=mine" in said.stdout
    assert "AWS_SESSION_TOKEN" not in said.stdout


def test_csh_gets_no_comments_but_messages_and_no_value_that_it_would_change(home, tmp_path, capsys, monkeypatch):
    record(home)
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert main(["env", "--shell", "csh"]) == 0
    output = capsys.readouterr()
    assert "#" not in output.out
    assert output.err == "clary: AWS_PROFILE was mine and is unset: the profile mine leads to this service too\n"
    odd = tmp_path / "a{b,c}"
    monkeypatch.setenv("CLARY_HOME", str(odd))
    record(odd)
    assert main(["env", "--shell", "csh"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "csh cannot read the value of SAGEMAKER_ADMIN_CONFIG_OVERRIDE: expected no braces" in output.err


@pytest.mark.parametrize(
    ("command", "language"),
    [
        pytest.param(("sh", "-c", "{}; true"), "sh"),
        pytest.param(("fish", "-c", "{} | cat"), "fish", marks=pytest.mark.needs("fish")),
        pytest.param(("fish", "-c", "sh -c '{}; true'"), "sh", marks=pytest.mark.needs("fish")),
        pytest.param(("tcsh", "-f", "-c", "echo `{}`; true"), "csh", marks=pytest.mark.needs("tcsh")),
    ],
)
def test_without_an_option_the_lines_are_in_the_language_of_the_calling_shell(tmp_path, command, language):
    program = tmp_path / "program.py"
    program.write_text("from clary.cli.env import calling_shell\nprint(calling_shell())\n")
    words = [word.format(f"{sys.executable} {program}") for word in command]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30)
    assert said.stdout.strip() == language


def test_json_has_no_language(home, capsys):
    with pytest.raises(SystemExit):
        main(["env", "--json", "--shell", "fish"])
    assert "not allowed with argument" in capsys.readouterr().err


def test_env_unset_removes_only_our_variables_and_needs_no_service(home, capsys, monkeypatch):
    assert main(["env", "--unset"]) == 0
    plain = capsys.readouterr().out
    assert plain.startswith("unset AWS_ENDPOINT_URL AWS_ACCESS_KEY_ID")
    assert main(["env", "--unset", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == plain.split()[1:]
    assert "PROXY" not in plain
    monkeypatch.setenv("AWS_CA_BUNDLE", "/of/somebody/else.pem")
    assert main(["env", "--unset"]) == 0
    assert capsys.readouterr().out == plain
    monkeypatch.setenv("AWS_CA_BUNDLE", str(home / "tls" / "ca.pem"))
    assert main(["env", "--unset"]) == 0
    assert capsys.readouterr().out == plain.rstrip() + " AWS_CA_BUNDLE HTTPS_PROXY https_proxy NO_PROXY no_proxy\n"


def test_env_quotes_folders_with_spaces_and_quotes(tmp_path, capsys, monkeypatch, home):
    odd = tmp_path / "it's $HOME; a folder"
    monkeypatch.setenv("CLARY_HOME", str(odd))
    record(odd)
    assert main(["env"]) == 0
    variables = after(capsys.readouterr().out)
    assert variables["SAGEMAKER_ADMIN_CONFIG_OVERRIDE"] == str(odd / "client" / "sagemaker-config.yaml")


def test_env_makes_the_profiles_that_are_named_and_that_of_aws_profile(home, capsys, monkeypatch):
    record(home)
    assert main(["env", "--profile", "one", "--profile", "two"]) == 0
    assert "#" not in capsys.readouterr().out
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert main(["env"]) == 0
    script = capsys.readouterr().out
    comment = script.splitlines()[-1]
    assert comment == "# AWS_PROFILE was mine and is unset: the profile mine leads to this service too"
    variables = after(script)
    assert variables["AWS_CONFIG_FILE"] == str(home / "client" / "aws-config")
    assert variables["AWS_SHARED_CREDENTIALS_FILE"] == str(home / "client" / "aws-credentials")
    lines = (home / "client" / "aws-config").read_text().splitlines()
    sections = [line for line in lines if line.startswith("[")]
    assert sections == ["[default]", "[profile mine]", "[profile one]", "[profile two]"]
    assert main(["env", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["AWS_CONFIG_FILE"] == variables["AWS_CONFIG_FILE"]


def test_env_unset_removes_the_files_of_profiles(home, capsys):
    assert main(["env", "--unset", "--json"]) == 0
    assert {"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"} <= set(json.loads(capsys.readouterr().out))


def test_env_refuses_a_profile_that_can_not_be_written_and_reports_one_of_the_environment(home, capsys, monkeypatch):
    record(home)
    assert main(["env", "--profile", "a b"]) == 2
    assert "'a b' is no name for a profile" in capsys.readouterr().err
    monkeypatch.setenv("AWS_PROFILE", "x\ntouch owned")
    assert main(["env"]) == 0
    output = capsys.readouterr()
    assert "owned" not in output.out
    assert "AWS_PROFILE" in output.err


def test_env_says_which_files_it_could_not_write_and_leaves_their_variables_out(home, capsys):
    folder = record(home)
    (folder.client / "aws-config").mkdir()
    assert main(["env"]) == 0
    output = capsys.readouterr()
    assert "AWS_CONFIG_FILE" not in output.out
    assert "AWS_ACCESS_KEY_ID" in output.out
    assert str(folder.client) in output.err


def test_env_tls_of_a_service_without_tls_is_refused(home, capsys):
    record(home)
    assert main(["env", "--tls"]) == 2
    assert "no TLS port: set tls_port" in capsys.readouterr().err
