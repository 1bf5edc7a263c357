"""Links to a job's results: their list and their validity; a browser saves the linked files and does not open them."""

from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
from server_parts import START, request, running_job

from clary.base.errors import ObjectStoreError, WireError
from clary.contract.launch_plan import Credentials
from clary.control.objects.listing import ListedObject, ListingPage
from clary.control.server.pages import downloads_page
from clary.control.server.pages.downloads_page import MOST_FILES, DownloadsPage
from clary.testing.fake_clock import FakeClock

KEYS = Credentials(access_key_id="K", secret_access_key="S")
REQUEST = {
    "TrainingJobName": "job-1",
    "OutputDataConfig": {"S3OutputPath": "s3://b/out"},
    "CheckpointConfig": {"S3Uri": "s3://b/ckpt"},
    "HyperParameters": {"sagemaker_submit_directory": '"s3://b/code.tar.gz"'},
}


@pytest.fixture
def listing(monkeypatch):
    """Make listings of the object store return these keys."""

    def put(*keys):
        async def fake_pages(client, bucket, prefix):
            found = tuple(ListedObject(key=key, size_bytes=len(key)) for key in keys if key.startswith(prefix))
            yield ListingPage(objects=found, folders=(), next_token="")

        monkeypatch.setattr(downloads_page, "pages", fake_pages)

    return put


async def page(job_request=REQUEST):
    made = DownloadsPage(None, credentials=KEYS, region="us-west-2", clock=FakeClock(START))
    asked = replace(request("/clary/v1/jobs/job-1/downloads"), headers=[("Host", "here:1")])
    return await made.page(running_job(request=job_request), asked)


async def test_results_are_listed_and_clary_s_own_objects_are_not(listing):
    listing(
        "out/job-1/output/model.tar.gz",
        "out/job-1/output/model.tar.gz.other",
        "code.tar.gz",
        "ckpt/step-1/a.pt",
        "ckpt/.clary-checkpoints/algo-1/set-00000001.json",
        "ckpt/folder/",
    )
    found = await page()
    assert [(file["what"], file["name"]) for file in found["files"]] == [
        ("model", "model.tar.gz"),
        ("code", "code.tar.gz"),
        ("checkpoint", "step-1/a.pt"),
    ]
    assert (found["num_files"], found["is_counted"]) == (3, True)


async def test_the_code_of_sdk_v3_is_listed_file_by_file(listing):
    listing("in/code/train.py", "in/code/lib/a.py", "in/code-of-others/x.py")
    channels = [
        {"ChannelName": name, "DataSource": {"S3DataSource": {"S3Uri": f"s3://b/in/{name}"}}}
        for name in ("code", "sm_drivers")
    ]
    found = await page({**REQUEST, "HyperParameters": {}, "InputDataConfig": channels})
    assert [(file["what"], file["name"]) for file in found["files"]] == [("code", "train.py"), ("code", "lib/a.py")]
    found = await page({**REQUEST, "HyperParameters": {}, "InputDataConfig": channels[:1]})
    assert found["files"] == []


async def test_a_link_is_signed_for_this_service_and_makes_browsers_save_the_file(listing):
    listing("ckpt/evil.html")
    (file,) = (await page())["files"]
    parts = urlsplit(file["url"])
    assert (parts.netloc, parts.path) == ("here:1", "/b/ckpt/evil.html")
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    assert query["response-content-disposition"] == 'attachment; filename="evil.html"'
    assert query["response-content-type"] == "application/octet-stream"
    assert query["X-Amz-Expires"] == "600"
    assert query["X-Amz-Signature"]


async def test_a_file_name_can_not_end_a_header(listing):
    listing('ckpt/a"; x\r\n\u20ac.pt')
    (file,) = (await page())["files"]
    query = parse_qs(urlsplit(file["url"]).query)
    assert query["response-content-disposition"][0] == 'attachment; filename="a\'; x___.pt"'


async def test_of_many_files_the_first_are_listed_and_all_are_counted_up_to_a_limit(listing, monkeypatch):
    listing(*[f"ckpt/{number:04}" for number in range(MOST_FILES + 50)])
    found = await page()
    assert (len(found["files"]), found["num_files"], found["is_counted"]) == (MOST_FILES, MOST_FILES + 50, True)
    monkeypatch.setattr(downloads_page, "MOST_COUNTED", MOST_FILES + 20)
    found = await page()
    assert (len(found["files"]), found["num_files"], found["is_counted"]) == (MOST_FILES, MOST_FILES + 20, False)


async def test_objects_of_checkpoint_sets_are_listed_up_to_a_limit(monkeypatch):
    num_pages = 0

    async def without_end(client, bucket, prefix):
        nonlocal num_pages
        while prefix == "ckpt/":
            num_pages += 1
            keys = [f"ckpt/.clary-checkpoints/algo-1/files/{num_pages:04}-{number:04}" for number in range(1000)]
            objects = tuple(ListedObject(key=key, size_bytes=1) for key in keys)
            yield ListingPage(objects=objects, folders=(), next_token="more")

    monkeypatch.setattr(downloads_page, "pages", without_end)
    monkeypatch.setattr(downloads_page, "MOST_LISTED", 5000)
    found = await page()
    assert (found["files"], found["num_files"], found["is_counted"], num_pages) == ([], 0, False, 5)


async def test_a_job_without_results_has_no_files(listing):
    listing()
    assert (await page({"TrainingJobName": "job-1"}))["files"] == []


async def test_an_error_of_the_store_gives_503(monkeypatch):
    async def failing(client, bucket, prefix):
        raise ObjectStoreError("no answer")
        yield

    monkeypatch.setattr(downloads_page, "pages", failing)
    with pytest.raises(WireError) as refused:
        await page()
    assert refused.value.http_status == 503
