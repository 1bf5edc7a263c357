"""Names of the images of SageMaker's built-in algorithms, against the lists of the SDK."""

import json

import pytest

from clary.contract.settings.built_in_algorithms import OTHER_ALGORITHMS, is_xgboost, pickles_model
from needs import VENVS

ECR = "683313688378.dkr.ecr.us-east-1.amazonaws.com/"
LEGACY = "433757028032.dkr.ecr.us-west-2.amazonaws.com/xgboost"


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (f"{ECR}sagemaker-xgboost:1.7-1", True),
        ("sagemaker-xgboost", True),
        (f"{ECR}sagemaker-xgboost@sha256:0", True),
        ("r:5000/sagemaker-xgboost:1", True),
        (f"{LEGACY}:1", True),
        (f"{LEGACY}:latest", True),
        ("123456789012.dkr.ecr.us-west-2.amazonaws.com/xgboost:1", False),
        ("433757028032.dkr.ecr.us-west-2.amazonaws.com/team/xgboost:1", False),
        ("xgboost:1", False),
        (f"{ECR}sagemaker-xgboost-own:1", False),
        ("", False),
    ],
)
def test_the_image_of_xgboost_is_known_by_its_name(image, expected):
    assert is_xgboost(image) is expected


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (f"{ECR}sagemaker-xgboost:0.90-2-cpu-py3", True),
        (f"{ECR}sagemaker-xgboost:1.2-2", True),
        (f"{ECR}sagemaker-xgboost:1.3-1", False),
        (f"{ECR}sagemaker-xgboost:3.0-5", False),
        (f"{ECR}sagemaker-xgboost:latest", False),
        (f"{LEGACY}:1", True),
    ],
)
def test_releases_before_1_3_pickle_their_model(image, expected):
    assert pickles_model(image) is expected


@pytest.mark.needs("sdk2")
def test_the_names_are_those_of_the_sdk():
    """A file of the SDK that serves both training and inference and has no framework's versions is an algorithm's."""
    (folder,) = VENVS.glob("sdk2/lib/python3*/site-packages/sagemaker/image_uri_config")
    found = set()
    for path in folder.glob("*.json"):
        document = json.loads(path.read_text())
        if document.get("scope") == ["inference", "training"] and "processors" not in document:
            found |= {version["repository"] for version in document["versions"].values()}
    assert found == set(OTHER_ALGORITHMS)
    document = json.loads((folder / "xgboost.json").read_text())["training"]["versions"]["1"]
    accounts = set(document["registries"].values())
    assert all(is_xgboost(f"{account}.dkr.ecr.x.amazonaws.com/{document['repository']}:1") for account in accounts)
