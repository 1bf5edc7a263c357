"""Real rehearsals, deep profiles and warm pools in the console, started and followed in a real browser."""

import gzip
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from boto3_clients import Clients, job_request, unique, wait
from console_answers import profile_answer, rehearsals_answer
from console_browser import keep_views, open_job
from playwright.sync_api import expect
from program_jobs import script_request, start, wait_for_none
from running_service import start_service
from warm_pools import end_pool

from clary.base.processes import ProcessId

pytest_plugins = ["console_fixtures"]
pytestmark = [pytest.mark.clients, pytest.mark.timeout(300), pytest.mark.xdist_group("console-rehearsals")]

# One line of at most 256 characters, the limit of a request. At step 8 a rehearsal that started anew waits for the
# fault.
RESUMES = (
    "at=/opt/ml/checkpoints/step; i=$(cat $at || echo 0); n=$i; while [ $i -lt 24 ]; do i=$((i+1)); "
    'echo "step $i loss=0.$((90-i))"; echo $i >$at.p; mv $at.p $at; '
    "case $n$i$TRAINING_JOB_NAME in 08*-rehearsal-*) sleep 99;; esac; done"
)
LIVES = 'i=0; while :; do i=$((i+1)); echo "step $i loss=0.5"; sleep 0.2; done'
STEPS = """
import time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(256, 64))
while True:
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=16):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
"""
ATTACK = "<img src=x onerror=alert(1)><script>alert(2)</script>"
# The volume size is unique in this module, so that no other job can use the warm hosts.
KEPT = {"InstanceCount": 1, "InstanceType": "ml.m5.large", "VolumeSizeInGB": 11, "KeepAlivePeriodInSeconds": 900}
LONG_MS = 150_000  # limit for jobs that run within a test
LONG_S = 60.0


@pytest.fixture(scope="module")
def own_service(tmp_path_factory):
    """A service of this module, whose hosts poll their checkpoints every 0.5 s."""
    own = start_service(tmp_path_factory.mktemp("console-rehearsals"), CLARY_CHECKPOINT_INTERVAL_S="0.5")
    yield own
    own.clary("down")


@pytest.fixture(scope="module")
def aws(own_service):
    return Clients(own_service)


@pytest.fixture(scope="module")
def live(aws):
    """A job that runs until the end, and may be rehearsed by any test."""
    name = start(aws, job_request(unique("lives"), LIVES))
    wait(aws, name, until=("Training",))
    yield name
    aws.sagemaker.stop_training_job(TrainingJobName=name)
    wait(aws, name)


def ended_job(aws):
    """Run a job that resumes correctly from a checkpoint; return its name."""
    config = {"S3Uri": f"s3://clary/{unique('ck')}"}
    name = start(aws, job_request(unique("resumes"), RESUMES, CheckpointConfig=config))
    answer = wait(aws, name)
    assert answer["TrainingJobStatus"] == "Completed", answer.get("FailureReason")
    return name


def open_dialog(page, name):
    page.get_by_role("button", name="Rehearse", exact=True).click()
    dialog = page.get_by_role("dialog", name=f"Rehearse {name}")
    expect(dialog).to_be_visible()
    return dialog


@pytest.mark.long(20)
def test_a_job_is_rehearsed_from_its_page_and_the_certificate_is_shown(page, console, aws):
    resumes = ended_job(aws)
    open_job(page, console, resumes, "rehearsals")
    expect(page.get_by_role("heading", name="This job was never rehearsed")).to_be_visible()
    keep_views(page, "job-rehearsals-none")
    page.get_by_role("button", name="Rehearse this job").click()
    dialog = page.get_by_role("dialog", name=f"Rehearse {resumes}")
    begin = dialog.get_by_role("button", name="Start the rehearsal")
    expect(begin).to_be_disabled()
    reclaim = dialog.get_by_role("group", name="Take spot capacity back")
    reclaim.get_by_label("Take spot capacity back").check()
    reclaim.get_by_label("When").select_option("at step")
    reclaim.get_by_label("Number").fill("8")
    cut = dialog.get_by_role("group", name="Cut a host off")
    expect(cut.get_by_label("Cut a host off")).to_be_disabled()
    expect(cut).to_contain_text("network")  # the reason why it is not available
    costs = dialog.get_by_role("region", name="What it costs")
    expect(costs).to_contain_text("Two new jobs of 1 host")
    expect(costs).to_contain_text("runs on spot capacity")
    dialog.get_by_text("The same on the command line").click()
    expect(dialog).to_contain_text(f"clary rehearse --reclaim=step:8 {resumes}")
    keep_views(page, "job-rehearse-dialog")
    confirm = dialog.get_by_label(f"Type {resumes} to confirm")
    confirm.fill("another")
    expect(begin).to_be_disabled()
    confirm.fill(resumes)
    confirm.press("Enter")
    expect(dialog).to_have_count(0)
    expect(page).to_have_url(re.compile(r"/rehearsals\?number=1$"))
    expect(page.locator("[role=log]")).to_contain_text(
        "reclaim at step 8: struck", timeout=LONG_MS
    )  # folded once the rehearsal has ended
    verdict = page.get_by_role("region", name="PASS: the job comes back as it was")
    expect(verdict).to_be_visible(timeout=LONG_MS)
    expect(page.get_by_role("region", name="In short")).to_contain_text("24 compared, equal as printed")
    expect(page.get_by_role("img", name=re.compile("^Loss of twin and rehearsal: chart of [23] lines"))).to_be_visible()
    expect(page.get_by_role("region", name="Faults")).to_contain_text("after training began")
    expect(page.get_by_role("region", name="Interruptions")).to_contain_text("was reclaimed")
    expect(page.get_by_role("region", name="Its jobs").get_by_text("Deleted")).to_have_count(2)
    keep_views(page, "job-rehearsals-pass")
    open_job(page, console, resumes)
    page.get_by_role("link", name="Rehearsal 1: PASS").click()
    expect(verdict).to_be_visible()  # the deep link, in a newly loaded page


@pytest.mark.long(10)
def test_a_rehearsal_is_cancelled_and_its_jobs_are_stopped(page, console, aws, live, own_service):
    open_job(page, console, live)
    dialog = open_dialog(page, live)
    kill = dialog.get_by_role("group", name="Kill a host")
    kill.get_by_label("Kill a host").check()
    dialog.get_by_label("Run both at once").check()
    expect(dialog).to_contain_text("at the same time: 2 hosts in all")
    expect(dialog).to_contain_text(f"clary rehearse --kill=algo-1@60s --together {live}")
    dialog.get_by_label(f"Type {live} to confirm").fill(live)
    dialog.get_by_role("button", name="Start the rehearsal").click()
    under_way = page.get_by_role("region", name="Under way")
    names = under_way.get_by_role("link")
    expect(names).to_have_count(2)  # both jobs exist
    number = re.search(r"number=(\d+)$", page.url)[1]
    twin, struck = names.all_inner_texts()
    page.get_by_role("button", name="Rehearse", exact=True).click()  # only one rehearsal may run at a time
    expect(page.get_by_role("status").filter(has_text=f"Rehearsal {number} is under way")).to_be_visible()
    page.get_by_role("button", name="Cancel it").click()
    expect(page.get_by_role("region", name="It was cancelled")).to_contain_text("its jobs were stopped")
    for name in (twin, struck):
        assert wait(aws, name)["TrainingJobStatus"] == "Stopped"
    open_job(page, console, twin)
    expect(page.get_by_role("link", name=f"{live}, rehearsal {number}")).to_be_visible()
    assert not wait_for_none(lambda: _processes_of(own_service, live))


def test_a_refused_rehearsal_gives_the_reason_in_its_dialog(page, console, live):
    open_job(page, console, live)
    dialog = open_dialog(page, live)
    dialog.get_by_role("group", name="Kill a rank").get_by_label("Kill a rank").check()
    dialog.get_by_text("How the log names steps and losses").click()
    dialog.get_by_label("Expression for a step").fill("step (")
    dialog.get_by_label(f"Type {live} to confirm").fill(live)
    dialog.get_by_role("button", name="Start the rehearsal").click()
    expect(dialog.get_by_role("alert")).to_contain_text("'step (' is not a regular expression")
    expect(dialog.get_by_role("button", name="Start the rehearsal")).to_be_enabled()  # ready for another try
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    order = {"confirm": live, "faults": [{"kind": "kill-rank", "text": "0@60s"}]}
    answer = page.request.post(f"{console.url}/clary/v1/jobs/{live}/rehearsals", data=order)
    assert answer.status == 403, "by cookie, without the session's own value"
    page.goto(f"{console.url}/console/jobs/{live}/rehearsals?number=777")
    expect(page.get_by_role("region", name="There is no such rehearsal")).to_contain_text(
        re.compile("has no rehearsal 777; (none was made|there are [1-9])")
    )


@pytest.mark.long
def test_after_a_kill_of_the_service_a_rehearsal_is_reported_as_interrupted(page, console, aws, live, own_service):
    open_job(page, console, live)
    dialog = open_dialog(page, live)
    dialog.get_by_role("group", name="Kill a rank").get_by_label("Kill a rank").check()
    dialog.get_by_label(f"Type {live} to confirm").fill(live)
    dialog.get_by_role("button", name="Start the rehearsal").click()
    running = page.get_by_role("region", name="Under way")
    expect(running).to_contain_text("kill rank 0 after")
    expect(running).to_contain_text("Waits for the twin")  # the rehearsal continues while its job runs
    twin = running.get_by_role("link").first
    expect(twin).to_be_visible()
    name = twin.inner_text()
    wait(aws, name, until=("Training",))
    keep_views(page, "job-rehearsals-running")
    record = json.loads((own_service.home / "run/service.json").read_text())
    service = ProcessId(record["pid"], record["process_started"])
    os.kill(record["pid"], signal.SIGKILL)
    deadline_s = time.monotonic() + LONG_S
    while service.is_alive():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert own_service.clary("up", check=False).returncode == 0
    # Without a next service the command would end by itself after two minutes.
    assert not wait_for_none(lambda: _processes_of(own_service, live), timeout_s=LONG_S)
    expect(page.get_by_role("region", name="It was interrupted")).to_contain_text("start it again")
    assert wait(aws, name)["TrainingJobStatus"] == "Stopped"
    answer = aws.sagemaker.describe_training_job(TrainingJobName=live)
    assert answer["TrainingJobStatus"] == "InProgress", "the job itself is not touched"
    keep_views(page, "job-rehearsals-interrupted")


def test_a_hostile_certificate_is_shown_as_text(page, console, live):
    """Certificates quote output of programs; this one quotes hostile texts."""
    page.route(
        f"**/clary/v1/jobs/{live}/rehearsals**",
        lambda route: route.fulfill(json=rehearsals_answer(live, ATTACK)),
    )
    open_job(page, console, live, "rehearsals")
    expect(page.get_by_role("region", name="FAIL: the job does not come back as it was")).to_contain_text(ATTACK)
    expect(page.get_by_role("region", name="Last metrics")).to_contain_text("constructor")
    expect(page.get_by_role("region", name="In short")).to_contain_text("4.5 s less")
    expect(page.get_by_role("button", name=re.compile("^done again"))).to_be_visible()
    page.get_by_text("What it said").click()
    expect(page.get_by_role("log")).to_contain_text(ATTACK)
    plot = page.get_by_role("img", name="Loss of twin and rehearsal: chart of 3 lines")
    plot.focus()
    page.keyboard.press("ArrowLeft")  # up to the last step
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_text("step 38")).to_be_visible()
    keep_views(page, "job-rehearsals-fail")
    assert page.locator("img[src=x]").count() == 0


@pytest.mark.long
def test_a_profile_is_taken_and_shown_and_its_trace_downloaded(page, console, aws):
    name = start(aws, script_request(aws, unique("profiled"), {"train.py": STEPS}))
    try:
        open_job(page, console, name, "profiles")
        expect(page.get_by_role("heading", name="No profile was taken")).to_be_visible()
        take = page.get_by_role("button", name="Take a profile")
        expect(take).to_be_enabled(timeout=LONG_MS)
        page.get_by_label("Steps", exact=True).fill("3")
        take.click()
        strips = page.get_by_role("region", name="Ranks over time")
        expect(strips).to_be_visible(timeout=LONG_MS)
        expect(strips.get_by_role("img", name=re.compile("^Rank 0: Compute .* %, Exposed"))).to_be_visible()
        steps = page.get_by_role("region", name="Where the steps went")
        expect(steps.get_by_role("columnheader", name="Exposed")).to_be_visible()
        expect(steps.get_by_role("row").nth(1)).to_contain_text("algo-1")
        expect(page.get_by_role("region", name="Longest operations")).to_contain_text("aten::")
        with page.expect_download() as handed:
            page.get_by_role("link", name="Download the merged trace").click()
        assert handed.value.suggested_filename.endswith("merged.trace.json.gz")
        trace = json.loads(gzip.decompress(Path(handed.value.path()).read_bytes()))
        assert any(str(event.get("name", "")).startswith("aten::") for event in trace["traceEvents"])
        keep_views(page, "job-profiles")
    finally:
        aws.sagemaker.stop_training_job(TrainingJobName=name)
        wait(aws, name)
    number = page.evaluate(f"fetch('/clary/v1/jobs/{name}/profile').then((a) => a.json()).then((p) => p.number)")
    page.goto(f"{console.url}/console/jobs/{name}/profiles?number={number}")  # the deep link of an ended job
    expect(page.get_by_role("region", name="Where the steps went")).to_be_visible()
    expect(page.get_by_role("button", name="Take a profile")).to_be_disabled()


@pytest.mark.long(55)
def test_a_profile_of_several_ranks_shows_the_late_rank_and_hostile_text_as_text(page, console, live):
    """Findings that need several machines are inserted into the service's response."""

    page.route(f"**/clary/v1/jobs/{live}/profile**", lambda route: route.fulfill(json=profile_answer(live, ATTACK)))
    open_job(page, console, live, "profiles")
    skew = page.get_by_role("region", name="Collectives across ranks")
    expect(skew).to_contain_text("Rank 1 comes last 10 times, 3.10 ms behind the first on average")
    expect(skew.get_by_role("row").nth(1)).to_contain_text("8.90 ms")
    expect(page.get_by_role("region", name="Where the steps went")).to_contain_text("50.0 %")
    expect(page.get_by_role("region", name=re.compile("^Rank 2 .* has no trace"))).to_contain_text(ATTACK)
    expect(page.get_by_role("region", name="Longest operations").get_by_role("row").nth(1)).to_contain_text("46.4 %")
    expect(page.get_by_label("Profile", exact=True).get_by_role("option")).to_have_count(2)
    keep_views(page, "job-profiles-ranks")
    assert page.locator("img[src=x]").count() == 0


@pytest.mark.long
def test_the_page_of_hosts_shows_pools_with_state_job_and_remaining_time(page, console, aws):
    kept = start(aws, job_request(unique("kept"), "true", ResourceConfig=KEPT))
    using = start(aws, job_request(unique("using"), LIVES, ResourceConfig={**KEPT, "VolumeSizeInGB": 12}))
    try:
        wait(aws, kept)
        wait(aws, using, until=("Training",))
        page.goto(f"{console.url}/console/hosts")
        pools = page.get_by_role("table", name="Pools")
        waiting = pools.get_by_role("row").filter(has=page.get_by_role("link", name=kept))
        expect(waiting).to_contain_text("Ready for a job")
        expect(waiting).to_contain_text("1 host of ml.m5.large")
        expect(waiting.get_by_role("progressbar", name=re.compile("Keep-alive left: .* of 15 min"))).to_be_visible()
        used = pools.get_by_role("row").filter(has=page.get_by_role("link", name=using))
        expect(used).to_contain_text("In use")
        expect(used).to_contain_text("15 min after the job")
        keep_views(page, "hosts-pools")
    finally:
        aws.sagemaker.stop_training_job(TrainingJobName=using)
        wait(aws, using)
        for name in (kept, using):
            end_pool(aws, name)


def _processes_of(service, name):
    """Return the processes that run rehearsals of a job."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            home = (folder / "cwd").resolve()
        except OSError:
            continue
        if b"rehearse" in words and name.encode() in words and home.is_relative_to(service.home):
            found.append(int(folder.name))
    return found
