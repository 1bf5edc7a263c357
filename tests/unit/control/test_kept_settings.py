"""Settings with which a service runs: changes since then are named, and no secret is kept."""

from dataclasses import replace

import pytest

from clary.control.kept_settings import FIXED, changes, keep_settings, read_kept
from clary.control.settings import FIELDS, Settings
from clary.control.state_folder import StateFolder


@pytest.fixture
def folder(tmp_path):
    folder = StateFolder(tmp_path)
    folder.create()
    return folder


def changed_names(folder, before, now, *, port=4570):
    keep_settings(folder, before, is_supervised=False)
    return [change.name for change in changes(read_kept(folder), now, port=port)]


def test_the_same_settings_have_not_changed_also_with_tables_and_lists(folder):
    settings = Settings(
        reachable_networks=("10.0.0.0/8",), images={"own:*": "own"}, instance_types={"ml.x.y": {"cpus": 2}}
    )
    assert changed_names(folder, settings, settings) == []


def test_changed_settings_are_named_with_both_values(folder):
    keep_settings(folder, Settings(max_hosts=4), is_supervised=True)
    kept = read_kept(folder)
    [change] = changes(kept, Settings(max_hosts=8), port=4570)
    assert change.words == "max_hosts (4 -> 8)"
    assert kept.is_supervised


@pytest.mark.parametrize(
    ("before", "now", "is_changed"),
    [(0, 0, False), (0, 5000, False), (5000, 0, False), (0, 4571, True), (5000, 4571, True)],
)
def test_a_port_that_stays_has_not_changed(folder, before, now, is_changed):
    names = changed_names(folder, Settings(port=before, tls_port=0), Settings(port=now, tls_port=0), port=5000)
    assert names == (["port"] if is_changed else [])


def test_secrets_are_compared_and_neither_kept_nor_shown(folder):
    before = Settings(database_url="postgresql://me:hush@db/one")
    keep_settings(folder, before, is_supervised=False)
    path = folder.root / "run" / "started.json"
    assert "hush" not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    [change] = changes(read_kept(folder), replace(before, database_url="postgresql://me:other@db/one"), port=4570)
    assert change.words == "database_url (a secret -> a secret)"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"settings": 3, "is_supervised": true}', "\0"])
def test_a_record_that_cannot_be_read_is_none(folder, text):
    (folder.root / "run" / "started.json").write_text(text)
    assert read_kept(folder) is None


def test_every_fixed_setting_exists():
    assert FIXED.keys() <= {setting.name for setting in FIELDS}
