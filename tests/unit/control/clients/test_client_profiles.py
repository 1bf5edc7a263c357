"""AWS profiles that lead to this service: real botocore reads the files, and never the user's own keys."""

import configparser
import stat

import botocore.session
import pytest
from botocore.exceptions import ProfileNotFound

from clary.base.errors import ClaryError
from clary.contract.launch_plan import Credentials
from clary.control.clients.client_profiles import checked_name, profile_variables, write_profiles
from clary.control.settings import Settings

KEYS = Credentials(access_key_id="AKID", secret_access_key="s3cr/et+%x")
URL = "http://127.0.0.1:4570"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder for clients, whose variables are set; the home has a real profile."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[prod]\naws_access_key_id = REAL\naws_secret_access_key = REAL\n")
    for name, value in profile_variables(tmp_path / "client").items():
        monkeypatch.setenv(name, value)
    return tmp_path / "client"


def write(folder, *names, credentials=KEYS, url=URL):
    write_profiles(folder, Settings(region="eu-west-1"), url=url, credentials=credentials, names=names)


def test_each_profile_leads_to_the_service_with_its_keys(folder):
    write(folder, "my", "team/a@b")
    for profile in (None, "default", "my", "team/a@b"):
        session = botocore.session.Session(profile=profile)
        keys = session.get_credentials()
        assert (keys.access_key, keys.secret_key) == (KEYS.access_key_id, KEYS.secret_access_key)
        client = session.create_client("s3")
        assert (client.meta.region_name, client.meta.endpoint_url) == ("eu-west-1", URL)
        assert session.get_scoped_config()["output"] == "json"
    assert sorted(botocore.session.Session().available_profiles) == ["default", "my", "team/a@b"]


def test_a_profile_of_the_user_is_not_found_so_that_its_keys_sign_nothing(folder):
    write(folder)
    with pytest.raises(ProfileNotFound, match="prod"):
        botocore.session.Session(profile="prod").create_client("s3")


def test_only_the_owner_can_read_the_files(folder):
    write(folder)
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_profiles_of_other_shells_are_kept_and_follow_the_service(folder):
    write(folder, "my")
    write(folder, "other", url="http://127.0.0.1:9")
    session = botocore.session.Session(profile="my")
    assert session.create_client("s3").meta.endpoint_url == "http://127.0.0.1:9"
    assert sorted(session.available_profiles) == ["default", "my", "other"]


def test_equal_files_are_not_written_again(folder):
    write(folder, "my")
    before = {path: path.stat().st_ino for path in folder.iterdir()}
    write(folder)
    assert {path: path.stat().st_ino for path in folder.iterdir()} == before


@pytest.mark.parametrize("text", ["[default", "\0\xff", '[profile a b]\n[profile "\n[x]\n'])
def test_a_damaged_file_is_replaced(folder, text):
    folder.mkdir()
    (folder / "aws-config").write_text(text, encoding="latin-1")
    write(folder, "my")
    assert sorted(botocore.session.Session().available_profiles) == ["default", "my"]


def test_without_keys_the_files_hold_none(folder):
    write(folder, "my", credentials=None)
    assert "aws_" not in "".join(path.read_text() for path in folder.iterdir())
    assert botocore.session.Session(profile="my").get_credentials() is None


@pytest.mark.parametrize("name", ["", "a b", "a]", "a\nb", 'a"b', "a'b", "#a", ";a", "a\\", "x" * 200, "a$(id)"])
def test_a_name_that_would_break_the_file_is_refused(name):
    with pytest.raises(ClaryError, match="profile"):
        checked_name(name)


def test_the_default_profile_is_written_once(folder):
    write(folder, "default", "my", "my")
    parser = configparser.RawConfigParser(strict=True)
    parser.read(folder / "aws-config")
    assert parser.sections() == ["default", "profile my"]


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("aws-credentials", "\n[work]\naws_access_key_id = AKIAREAL\naws_secret_access_key = real\n"),
        ("aws-config", "\n[sso-session team]\nsso_region = eu-west-1\n"),
    ],
)
def test_what_another_tool_has_written_is_kept_beside_the_files(folder, name, added, caplog):
    write(folder, "work")
    with (folder / name).open("a") as file:
        file.write(added)
    changed = (folder / name).read_text()
    write(folder)
    (kept,) = folder.glob("*.saved-*")
    assert kept.name.startswith(f"{name}.saved-")
    assert kept.read_text() == changed
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert str(kept) in caplog.text
    write(folder)
    write(folder, "new", url="http://127.0.0.1:1")
    assert list(folder.glob("*.saved-*")) == [kept]
