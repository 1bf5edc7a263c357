"""S3 from clients in several environments: encryption, browser forms, regions, temporary keys, pyarrow."""

import pytest
from running_service import SDK2_PYTHON, SDK3_PYTHON

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("clients-s3")]

SCRIPT = "s3_door.py"


@pytest.mark.long(18)
@pytest.mark.parametrize(("python", "has_arrow"), [(SDK2_PYTHON, False), (SDK3_PYTHON, True)], ids=["sdk2", "sdk3"])
def test_s3_clients_of_each_environment_get_the_expected_results(service, python, has_arrow):
    output, facts = service.run_client(python, SCRIPT)
    assert facts["encryption"] == ["aws:kms", "mine"]
    assert facts["default"] == "AES256"
    assert facts["forms"] == [[204, 400], [204, 400]], output[-3000:]
    assert facts["form"] == "hello"
    assert facts["foreign"] == ["AuthorizationHeaderMalformed", "us-west-2"]
    assert facts["led"] == "x"
    assert facts["temporary"]["buckets"] >= 2
    assert facts["temporary"]["jobs"] == 200
    refused = {name: facts["temporary"][name] for name in ("s3", "sagemaker", "sts", "renewed")}
    assert refused == {
        "s3": "InvalidToken",
        "sagemaker": "UnrecognizedClientException",
        "sts": "InvalidClientTokenId",
        "renewed": "AccessDenied",
    }
    assert facts["arrow"] == (["hello", "hello"] if has_arrow else None)
