"""Settings of collectives: values from the environment, and the words on wrong ones."""

from pathlib import Path

import pytest

from clary.train.collective.settings import VARIABLES, CollectiveSettings, Link


def test_an_empty_environment_gives_the_documented_defaults():
    settings = CollectiveSettings.from_environment({})
    assert settings == CollectiveSettings()
    assert (settings.timeout_s, settings.connect_timeout_s, settings.slot_bytes) == (30.0, 300.0, 1 << 20)


def test_every_variable_is_read():
    settings = CollectiveSettings.from_environment(
        {
            "CLARY_COLLECTIVE_TIMEOUT_S": "1.5",
            "CLARY_COLLECTIVE_CONNECT_TIMEOUT_S": "2",
            "CLARY_COLLECTIVE_INTERFACE": "eth7",
            "CLARY_COLLECTIVE_SECRET": "s3cret",
            "CLARY_COLLECTIVE_SLOT_BYTES": "8192",
            "CLARY_COLLECTIVE_LINK": "gbit=8, latency_us=100",
            "CLARY_COLLECTIVE_ALGORITHM": "ring",
            "CLARY_COLLECTIVE_CORE": "reference",
            "CLARY_COLLECTIVE_HOST": "left",
            "CLARY_COLLECTIVE_PORT": "4711",
            "MASTER_ADDR": "algo-1",
            "GLOO_SOCKET_IFNAME": "eth0",
            "NCCL_SOCKET_IFNAME": "^docker",
            "SM_NETWORK_INTERFACE_NAME": "eth1",
            "SM_CURRENT_HOST": "algo-2",
        }
    )
    assert settings == CollectiveSettings(
        timeout_s=1.5,
        connect_timeout_s=2.0,
        interface="eth7",
        secret="s3cret",
        slot_bytes=8192,
        link=Link(latency_s=1e-4, bytes_per_s=1e9),
        algorithm="ring",
        core="reference",
        host="left",
        port=4711,
        master_address="algo-1",
        gloo_interface="eth0",
        nccl_interface="^docker",
        sagemaker_interface="eth1",
        sagemaker_host="algo-2",
    )


def test_an_empty_variable_counts_as_not_set():
    assert CollectiveSettings.from_environment({"CLARY_COLLECTIVE_TIMEOUT_S": " "}).timeout_s == 30.0


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CLARY_COLLECTIVE_TIMEOUT_S", "0"),
        ("CLARY_COLLECTIVE_TIMEOUT_S", "-1"),
        ("CLARY_COLLECTIVE_TIMEOUT_S", "nan"),
        ("CLARY_COLLECTIVE_TIMEOUT_S", "soon"),
        ("CLARY_COLLECTIVE_CONNECT_TIMEOUT_S", "inf"),
        ("CLARY_COLLECTIVE_INTERFACE", "a name of far too many letters"),
        ("CLARY_COLLECTIVE_SLOT_BYTES", "1000"),
        ("CLARY_COLLECTIVE_SLOT_BYTES", "0"),
        ("CLARY_COLLECTIVE_SLOT_BYTES", "4096.0"),
        ("CLARY_COLLECTIVE_LINK", "fast"),
        ("CLARY_COLLECTIVE_LINK", "latency_us=50"),
        ("CLARY_COLLECTIVE_LINK", "latency_us=50,gbit=0"),
        ("CLARY_COLLECTIVE_LINK", "latency_us=50,gbit=1,colour=blue"),
        ("CLARY_COLLECTIVE_ALGORITHM", "Ring!"),
        ("CLARY_COLLECTIVE_CONGESTION", "Reno"),
        ("CLARY_COLLECTIVE_CORE", "fast"),
        ("CLARY_COLLECTIVE_PORT", "70000"),
        ("MASTER_ADDR", "two words"),
    ],
)
def test_a_wrong_value_is_refused_with_variable_value_and_what_is_expected(variable, value):
    (declared,) = (one for one in VARIABLES if one.name == variable)
    with pytest.raises(ValueError) as refusal:
        CollectiveSettings.from_environment({variable: value})
    assert str(refusal.value) == f"{variable} is {value!r}; expected {declared.expects}"


def test_the_secret_is_not_shown():
    assert "s3cret" not in repr(CollectiveSettings(secret="s3cret"))


def test_every_variable_is_declared_once_with_its_meaning():
    names = [variable.name for variable in VARIABLES]
    assert len(names) == len(set(names))
    assert all(variable.meaning and variable.expects for variable in VARIABLES)


def test_the_page_of_smddp_names_every_setting_with_its_default():
    page = (Path(__file__).parents[4] / "docs" / "smddp.md").read_text()
    for variable in VARIABLES:
        assert f"| `{variable.name}` | {variable.expects} | " in page, variable.name
        assert not variable.default or f"| `{variable.default}` | {variable.meaning} |" in page, variable.name
