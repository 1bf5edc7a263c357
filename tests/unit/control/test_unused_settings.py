"""Settings without effect under an engine are reported, each with its reason, and only if they were set."""

from dataclasses import fields

import pytest

from clary.control.settings import Settings
from clary.control.unused_settings import _UNUSED, unused_settings


@pytest.mark.parametrize("engine", ["local", "slurm", "boxes"])
def test_defaults_are_not_reported(engine):
    assert unused_settings(Settings(engine=engine)) == []


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"engine": "slurm", "internet": False},
            "keeps the service from public_buckets with engine slurm: programs reach",
        ),
        ({"engine": "boxes", "max_hosts": 3}, "Setting max_hosts has no effect with engine boxes"),
        ({"engine": "boxes", "node_python": "python3.12"}, "`clary hosts add --python` names a box's"),
        ({"engine": "local", "advertise_url": "https://h:1"}, "Setting advertise_url has no effect with engine local"),
        ({"engine": "local", "slurm": {"*": {"partition": "p"}}}, "Setting slurm has no effect with engine local"),
        ({"engine": "slurm", "isolation": "processes"}, "Setting isolation = processes has no effect"),
    ],
)
def test_a_setting_without_effect_is_reported(settings, told):
    (sentence,) = unused_settings(Settings(**settings))
    assert told in sentence


@pytest.mark.parametrize(
    "settings",
    [
        {"engine": "local", "internet": False, "max_hosts": 3, "isolation": "processes"},
        {"engine": "slurm", "node_python": "python3.12", "slurm": {"*": {"partition": "p"}}, "isolation": "namespaces"},
        {"engine": "boxes", "advertise_url": "https://h:1"},
    ],
)
def test_a_setting_with_effect_is_not_reported(settings):
    assert unused_settings(Settings(**settings)) == []


def test_every_name_is_a_setting():
    assert set(_UNUSED) <= {setting.name for setting in fields(Settings)}
