"""Files for clients: variables that lead to this service, and a SageMaker configuration whose names stay text."""

import json
from pathlib import Path

import pytest

from clary.contract.launch_plan import Credentials
from clary.control.clients.client_files import TLS_VARIABLES, client_variables, sagemaker_config, tls_variables
from clary.control.settings import Settings

KEYS = Credentials(access_key_id="AKID", secret_access_key="secret")


def quoted_values(text):
    """Return the value of every quoted scalar of the configuration, by its key."""
    lines = [line.strip().partition(": ") for line in text.splitlines()]
    return {name: json.loads(value) for name, _, value in lines if value.startswith('"')}


def test_variables_name_service_keys_region_and_configuration():
    variables = client_variables(
        Settings(region="eu-west-1"), url="http://127.0.0.1:1", credentials=KEYS, client_folder=Path("/s/client")
    )
    assert variables == {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "AKID",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_REGION": "eu-west-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "S3_ENDPOINT": "http://127.0.0.1:1",
        "S3_USE_HTTPS": "0",
        "S3_VERIFY_SSL": "0",
        "S3_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ALLOW_HTTP": "true",
        "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": "/s/client/sagemaker-config.yaml",
        "SAGEMAKER_USER_CONFIG_OVERRIDE": "/s/client/sagemaker-config.yaml",
    }


def test_variables_for_a_service_with_tls_replace_those_for_one_without():
    plain, encrypted, unset = (
        client_variables(Settings(), url=url, credentials=KEYS, client_folder=Path("/s/client"))
        for url in ("http://127.0.0.1:1", "https://gpu1:4571", "")
    )
    assert set(plain) == set(encrypted) == set(unset)
    assert encrypted["S3_ENDPOINT"] == encrypted["S3_ENDPOINT_URL"] == "https://gpu1:4571"
    assert (encrypted["S3_USE_HTTPS"], encrypted["S3_VERIFY_SSL"], encrypted["AWS_ALLOW_HTTP"]) == ("1", "1", "false")


def test_https_uses_the_proxy_with_variables_in_both_spellings():
    variables = tls_variables(
        Path("/s/tls"), url="http://127.0.0.1:1", proxy_url="http://127.0.0.1:2", environ={"NO_PROXY": "intranet"}
    )
    assert tuple(variables) == TLS_VARIABLES
    assert variables["AWS_CA_BUNDLE"] == "/s/tls/ca.pem"
    assert variables["HTTPS_PROXY"] == variables["https_proxy"] == "http://127.0.0.1:2"
    assert variables["NO_PROXY"] == variables["no_proxy"] == "intranet,localhost,127.0.0.1,::1"


@pytest.mark.parametrize("name", ["clary", "123", "1e3", "true", "a: b", "x\ny"])
def test_names_stay_text_in_the_configuration_whatever_they_contain(name):
    text = sagemaker_config(Settings(default_bucket=name, role_name=name))
    values = quoted_values(text)
    assert values["DefaultS3Bucket"] == name
    assert values["RoleArn"] == f"arn:aws:iam::000000000000:role/{name}"
    assert len(text.splitlines()) == 11, "a name ended its line"
    assert "TelemetryOptOut: true" in text
