"""Names of public buckets: patterns that the owner may write, and the names that they match."""

import pytest

from clary.control.egress.public_names import SAMPLE_BUCKETS, check_pattern, is_public_name


@pytest.mark.parametrize("text", [*SAMPLE_BUCKETS, "open-data", "my-open-data-*", "dask-data"])
def test_names_and_patterns_are_accepted(text):
    assert check_pattern(text) == text


@pytest.mark.parametrize(
    "text", ["*", "sage*", "a.b", "Data", "", "ab", "open_data", "sagemaker/../x", "x{region}*", "x" * 64]
)
def test_patterns_that_would_tell_other_names_to_aws_are_refused(text):
    with pytest.raises(ValueError, match=r"expected|match"):
        check_pattern(text)


def test_only_names_that_a_pattern_matches_are_public():
    assert is_public_name("sagemaker-sample-files", SAMPLE_BUCKETS)
    assert is_public_name("sagemaker-example-files-prod-eu-west-1", SAMPLE_BUCKETS)
    assert is_public_name("sagemaker-sample-data-us-gov-west-1", SAMPLE_BUCKETS)
    assert not is_public_name("sagemaker-sample-data-mine", SAMPLE_BUCKETS)
    assert not is_public_name("sagemaker-sample-data-us-west-2-mine", SAMPLE_BUCKETS)
    assert not is_public_name("sagemaker-us-west-2-000000000000", SAMPLE_BUCKETS)
    assert not is_public_name("sagemaker-sample-files2", SAMPLE_BUCKETS)
    assert not is_public_name("sagemaker-sample-data-x.evil.example", SAMPLE_BUCKETS)
    assert not is_public_name("", SAMPLE_BUCKETS)


def test_a_star_stands_for_any_characters_but_dots():
    assert is_public_name("open-data-a-b", ["open-data-*"])
    assert is_public_name("open-data-", ["open-data-*"])
    assert not is_public_name("my-open-data-a", ["open-data-*"])
    assert not is_public_name("open-data-a.b", ["open-data-*"])
    assert not is_public_name("openxdata-a", ["open-data-*"])
