"""Settings: loaded from file and variables, refused by name, documented one by one."""

import os
import sys
from pathlib import Path

import pytest

from clary.base.errors import ContractError, Fault
from clary.control.settings import FIELDS, Settings, load_settings, type_of, variable_of
from clary.control.store.database import parse_url

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def load(tmp_path):
    """Load settings from a text of settings.toml and variables."""

    def load(text=None, **variables):
        if text is not None:
            (tmp_path / "settings.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_settings({"CLARY_HOME": str(tmp_path), **variables})

    return load


def test_defaults_apply_where_nothing_is_set(load, tmp_path):
    assert load() == Settings(home=str(tmp_path))


def test_the_variable_wins_over_the_file_and_the_file_over_the_default(load):
    settings = load("port = 1234\nregion = 'eu-west-1'\n", CLARY_PORT="2345")
    assert (settings.port, settings.region, settings.tls_port) == (2345, "eu-west-1", 4571)


def test_an_empty_home_variable_is_the_default_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_settings({"CLARY_HOME": ""}).home_folder == tmp_path / ".clary"
    assert load_settings({}).home_folder == tmp_path / ".clary"


def test_a_relative_home_is_relative_to_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert load_settings({"CLARY_HOME": "state"}).home == str(tmp_path / "state")


def test_the_database_is_in_the_state_folder_unless_the_url_is_set(load, tmp_path):
    assert parse_url(load().resolved_database) == parse_url(f"sqlite:///{tmp_path}/clary.db")
    assert load(CLARY_DATABASE_URL="postgresql://db/x").resolved_database == "postgresql://db/x"


# With a meaning in a URL: `%20`, `?` and `#`.
@pytest.mark.parametrize("name", ["a%20b", "100%", "why?", "x?mode=memory#y", "a b+c:d@e", "\u00fc%2F", "\udcff%"])
def test_a_state_folder_of_any_name_has_its_database_within(tmp_path, name):
    url = parse_url(load_settings({"CLARY_HOME": str(tmp_path / name)}).resolved_database)
    assert (url.database, dict(url.query)) == (str(tmp_path / name / "clary.db"), {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 1", "unknown setting 'prot'; known are account_id"),
        ("port = '1'", "setting port expects int, got '1'"),
        ("port = true", "setting port expects int, got True"),
        ("port = 1.5", "setting port expects int, got 1.5"),
        ("port = 65536", "at most 65535"),
        ("port = -1", "at least 0"),
        ("port = 5\ntls_port = 5", "port and tls_port are both 5"),
        ("stop_grace_s = nan", "a finite number"),
        ("stop_grace_s = inf", "a finite number"),
        ("stop_grace_s = -1", "at least 0"),
        ("internet = 1", "setting internet expects bool, got 1"),
        ("region = 5", "setting region expects str, got 5"),
        ("account_id = '12'", "account_id expects str, got '12'"),
        ("isolation = 'docker'", "auto|namespaces|processes"),
        ("s3_endpoint_url = 'localhost:9000'", "s3_endpoint_url expects str"),
        ("default_bucket = 'Big_Bucket'", "default_bucket expects str"),
        ("role_name = 'a role'", "role_name expects str"),
        ("images = 'x'", "setting images expects dict"),
        ("[images]\na = 5", "expected text for 'a'"),
        ("[instance_types]\na = 5", "expected a table for 'a'"),
        (
            '[instance_types."ml.x"]\ngpu = 1',
            '[instance_types."ml.x"], gpu: expected one of gpus, cpus, memory_gib, processes, rate_mbit_s, delay_ms, '
            "loss_percent, got an unknown key",
        ),
        ('[instance_types."ml.x"]\ncpus = "four"', "cpus: expected a whole number from 1 to 1024, got 'four'"),
        ('[instance_types."ml.x"]\nloss_percent = 101', "loss_percent: expected a number from 0 to 100, got 101"),
        ("home = '/elsewhere'", "only be set by the variable CLARY_HOME"),
        ("port = ", "not valid TOML"),
        (b"region = '\xff'", "not valid TOML"),
    ],
)
def test_an_invalid_line_is_refused_with_file_setting_and_expected_value(load, tmp_path, text, says):
    with pytest.raises(ContractError) as refused:
        load(text)
    assert refused.value.fault is Fault.USER
    assert says in refused.value.message
    if "both" not in says:
        assert refused.value.message.startswith(f"{tmp_path}/settings.toml: ")


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("CLARY_PORT", "http", "setting port expects int, got 'http' (expected a whole number)"),
        ("CLARY_PORT", "", "setting port expects int, got ''"),
        ("CLARY_STOP_GRACE_S", "soon", "expected a number"),
        ("CLARY_INTERNET", "maybe", "expected true or false"),
    ],
)
def test_an_invalid_variable_is_refused_with_its_name(load, variable, value, says):
    with pytest.raises(ContractError) as refused:
        load(**{variable: value})
    assert refused.value.message.startswith(f"{variable}: ")
    assert says in refused.value.message


@pytest.mark.parametrize(("word", "value"), [("yes", True), ("On", True), ("1", True), ("NO", False), ("off ", False)])
def test_words_for_true_and_false_are_accepted_in_variables(load, word, value):
    assert load(CLARY_INTERNET=word).internet is value


def test_integers_are_accepted_as_durations(load):
    assert load("stop_grace_s = 3").stop_grace_s == 3.0
    assert type(load().stop_grace_s) is float


def test_an_unreadable_settings_file_is_an_error(load, tmp_path):
    (tmp_path / "settings.toml").mkdir()
    with pytest.raises(ContractError, match=r"settings\.toml: cannot be read: Is a directory"):
        load()


def test_secrets_are_neither_shown_nor_quoted_in_a_refusal(load):
    settings = load(CLARY_S3_SECRET_ACCESS_KEY="hush", CLARY_DATABASE_URL="postgresql://u:hush@db/x")
    assert settings.s3_secret_access_key == "hush"
    assert "hush" not in repr(settings)
    with pytest.raises(ContractError) as refused:
        load("s3_secret_access_key = ['hush']")
    assert "hush" not in refused.value.message


def test_every_default_passes_its_own_check(load):
    variables = {
        variable_of(setting.name): ",".join(getattr(Settings, setting.name))
        if type_of(setting.name) is tuple
        else str(getattr(Settings, setting.name))
        for setting in FIELDS
        if type_of(setting.name) is not dict and setting.name != "home"
    }
    assert load(**variables) == load()


def test_the_page_of_settings_matches_the_declarations():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import make_settings_page
    finally:
        sys.path.pop(0)
    assert make_settings_page.TARGET.read_text() == make_settings_page.page(), "run tools/make_settings_page.py"


@pytest.mark.parametrize("setting", FIELDS, ids=lambda setting: setting.name)
def test_every_setting_is_documented_with_its_variable_and_help(setting):
    page = (ROOT / "docs" / "settings.md").read_text()
    assert setting.metadata["help"] in page
    named = f"`{setting.name}`" if type_of(setting.name) is dict else f"`{variable_of(setting.name)}`"
    assert any(line.startswith("|") and named in line for line in page.splitlines())


def test_loading_reads_only_its_arguments(monkeypatch, tmp_path):
    monkeypatch.setitem(os.environ, "CLARY_PORT", "9")
    assert load_settings({"CLARY_HOME": str(tmp_path)}).port == 4570
