"""Permits of a job's key: filtered listings, and markers that name no key of others."""

import re

import pytest
from multidict import CIMultiDict

from clary.base.errors import WireError
from clary.control.objects.permits.hidden_markers import HiddenMarkers
from clary.control.objects.permits.permit import Permit
from clary.control.objects.s3_request import S3Request
from clary.control.permissions.grants import Grants, Place

HIDDEN = HiddenMarkers("the store's secret")
OWN = Grants(job_name="job-1", job_arn="arn:job-1", job_id="1", writes=(Place("b", "out/job-1"),))


class FakeRequest:
    headers = CIMultiDict()


def listing_of(*query, grants=OWN):
    asked = S3Request(method="GET", bucket="b", key="", query=query)
    return Permit(grants, FakeRequest(), asked, hidden=HIDDEN), asked


def content_of(*keys, marker="", echo="", encoded=False):
    rest = "".join(f"<Contents><Key>{key}</Key></Contents>" for key in keys)
    kind = "<EncodingType>url</EncodingType>" if encoded else ""
    return (
        f"<ListBucketResult><Name>b</Name><Marker>{echo}</Marker><KeyCount>{len(keys)}</KeyCount>"
        f"<NextMarker>{marker}</NextMarker>{kind}{rest}</ListBucketResult>"
    ).encode()


def text_in(content, name):
    return re.search(f"<{name}>(.*?)</{name}>", content.decode())[1]


@pytest.mark.parametrize("encoded", [False, True])
def test_a_listing_has_only_readable_keys_and_a_marker_that_only_the_service_can_read(encoded):
    permit, _ = listing_of(("prefix", "out/job-1"))
    content = permit.filter_listing(
        content_of("out/job-1/a", "out/job-10/secret", marker="out/job-10/secret", encoded=encoded)
    )
    assert b"secret" not in content
    assert (text_in(content, "Key"), text_in(content, "KeyCount")) == ("out/job-1/a", "1")
    marker = text_in(content, "NextMarker")
    permit, asked = listing_of(("prefix", "out/job-1"), ("marker", marker))
    assert permit.with_clear_markers(asked).query == (("prefix", "out/job-1"), ("marker", "out/job-10/secret"))
    assert text_in(permit.filter_listing(content_of(echo="out/job-10/secret")), "Marker") == marker


def test_a_marker_goes_on_in_its_own_listing_only():
    marker = HIDDEN.hide("b", "out/job-2", "out/job-20/x")
    permit, asked = listing_of(("prefix", "out/job-1"), ("marker", marker))
    with pytest.raises(WireError, match="must be a key that the job may read") as refused:
        permit.with_clear_markers(asked)
    assert (refused.value.code, refused.value.http_status) == ("AccessDenied", 403)


@pytest.mark.parametrize("name", ["marker", "start-after", "continuation-token"])
def test_a_marker_of_another_job_is_refused(name):
    permit, asked = listing_of(("prefix", "out/job-1"), (name, "out/job-10/m"))
    with pytest.raises(WireError, match=f"{name} of a listing with prefix 'out/job-1'"):
        permit.with_clear_markers(asked)


@pytest.mark.parametrize("grants", [None, OWN])
def test_listings_that_need_no_filter_stay_as_they_are(grants):
    permit, asked = listing_of(("prefix", "out/job-1/"), ("start-after", "zzz"), grants=grants)
    assert permit.with_clear_markers(asked) is asked
    assert not permit.is_filtered


@pytest.mark.parametrize("text", ["clary-hidden.", "clary-hidden.AAAA", "clary-hidden.\u00fc", "out/job-1/a"])
def test_texts_that_the_service_has_not_made_are_no_markers(text):
    assert HIDDEN.reveal("b", "out/job-1", text) is None
