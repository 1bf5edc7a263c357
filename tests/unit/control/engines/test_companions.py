"""Which packages come with an image's framework, and which are only named."""

import pytest

from clary.control.engines.added_environments import parse_wish
from clary.control.engines.companions import companions_of, left_out


@pytest.mark.parametrize(
    ("image", "installed", "named"),
    [
        ("pytorch:2.8", {"boto3"}, {"torchvision", "torchaudio", "pandas", "scikit-learn"}),
        (
            "huggingface-pytorch:2.8",
            {"boto3", "datasets", "evaluate", "accelerate", "scikit-learn"},
            {"torchvision", "torchaudio", "pandas"},
        ),
        ("huggingface-tensorflow:2.16", {"boto3", "datasets", "evaluate", "scikit-learn"}, {"pandas"}),
        ("sklearn:1.5", {"boto3", "pandas", "scipy", "joblib"}, set()),
        ("xgboost:1.7-1", {"boto3", "pandas", "scipy", "joblib", "scikit-learn"}, set()),
    ],
)
def test_companions_of_an_image(image, installed, named):
    _, wanted = parse_wish(image)
    assert {one.name for one in companions_of(wanted)} == installed
    assert set(left_out(wanted)) == named


def test_a_companion_is_required_by_its_distribution_and_imported_by_its_module():
    _, wanted = parse_wish("huggingface-pytorch:2.8")
    assert {(one.requirement, one.module) for one in companions_of(wanted)} == {
        ("boto3", "boto3"),
        ("datasets>=3", "datasets"),
        ("evaluate", "evaluate"),
        ("accelerate", "accelerate"),
        ("scikit-learn", "sklearn"),
    }
