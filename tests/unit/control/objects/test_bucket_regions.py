"""The region of a bucket, as the service reports it to clients."""

import pytest

from clary.base.errors import WireError
from clary.control.objects.bucket_regions import check_constraint, location_document


@pytest.mark.parametrize(
    ("content", "region"),
    [
        (b"", "us-west-2"),
        (b"<CreateBucketConfiguration/>", "us-west-2"),
        (b"<a:LocationConstraint> us-west-2 </a:LocationConstraint>", "us-west-2"),
        (b"<LocationConstraint>EU</LocationConstraint>", "eu-west-1"),
    ],
)
def test_a_bucket_is_created_with_our_region_or_without_a_constraint(content, region):
    check_constraint(content, region)


@pytest.mark.parametrize("wanted", [b"eu-central-1", b"\xff", b"us-west-2x", b"EU"])
def test_a_bucket_in_another_region_is_refused(wanted):
    with pytest.raises(WireError) as error:
        check_constraint(b"<LocationConstraint>" + wanted + b"</LocationConstraint>", "us-west-2")
    assert error.value.code == "IllegalLocationConstraintException"


def test_the_oldest_region_is_reported_as_an_empty_constraint():
    assert b">us-west-2</LocationConstraint>" in location_document("us-west-2")
    assert b"></LocationConstraint>" in location_document("us-east-1")
