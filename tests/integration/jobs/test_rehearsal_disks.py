"""`clary rehearse --disk-full`: real ENOSPC from the host's own disk, in scripts that catch it or do not."""

import os
from pathlib import Path

import pytest
from boto3_clients import Clients, unique
from program_jobs import channel, put
from rehearsal_commands import FAIL, INCONCLUSIVE, PASS, USAGE, forgetting, rehearse, request_file
from running_service import start_service

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("rehearsal-disks"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="hosts get disks of their own from root alone"),
]

SAVE = """\
                torch.save(state, PLACE + ".part")
                os.replace(PLACE + ".part", PLACE)
"""
CAREFUL_SAVE = """\
                try:
                    with open(PLACE + ".part", "wb") as file:
                        torch.save(state, file)
                    os.replace(PLACE + ".part", PLACE)
                    print(f"kept the state of step {step}", flush=True)
                except (OSError, RuntimeError) as error:
                    os.unlink(PLACE + ".part")
                    print(f"no room for the state: {error}", flush=True)
"""
LARGE_SAVE = """\
                with open("/opt/ml/model/large", "wb") as file:
                    file.write(bytes(20 << 20))
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A service whose hosts poll their checkpoints often."""
    running = start_service(tmp_path_factory.mktemp("disks"), CLARY_CHECKPOINT_INTERVAL_S="0.5")
    yield running
    running.clary("down")


@pytest.fixture(scope="module")
def aws(own):
    return Clients(own)


def saving(text):
    """Return the program with these lines for its save at each step, slowed down so that the fault hits a step."""
    program = forgetting("")
    for old, new in ((SAVE, text), ("= 32, 5, 4, 64", "= 32, 1, 4, 64"), ("PAUSE_S = 0.15", "PAUSE_S = 0.3")):
        assert old in program
        program = program.replace(old, new)
    return program


def printed(own, job, *options):
    return own.clary("logs", job, *options).stdout


@pytest.mark.long
def test_a_program_killed_by_a_full_disk_fails_and_the_certificate_names_enospc(own, aws, tmp_path):
    path, _ = request_file(aws, tmp_path, forgetting(""))
    done, certificate = rehearse(own, tmp_path, path, "--disk-full", "algo-1@step:7", "--disk-size", "64MiB")
    assert done.returncode == FAIL, done.stdout + done.stderr
    assert "the program itself died of the full disk" in certificate["reason"]
    assert "Failed: AlgorithmError: algo-1: No space left on device" in certificate["reason"]
    assert "ENOSPC" in certificate["advice"]
    assert certificate["interruptions"] == [], "it is not tried again"
    assert "plan (1 fault)\n  fill the disk of algo-1 at step 7\n" in done.stdout
    assert "the disk of algo-1 for /opt/ml lies in memory and holds 64 MiB" in done.stdout


@pytest.mark.long
def test_a_program_that_catches_enospc_trains_on_and_saves_again_later(own, aws, tmp_path):
    path, _ = request_file(aws, tmp_path, saving(CAREFUL_SAVE))
    done, certificate = rehearse(own, tmp_path, path, "--disk-full", "algo-1@step:7+2s", "--keep")
    assert done.returncode == PASS, done.stdout + done.stderr
    assert certificate["losses"]["num_equal"] == 32
    assert certificate["interruptions"] == []
    lines = [line for line in printed(own, certificate["rehearsal"]).splitlines() if "the state" in line]
    assert "kept the state" in lines[0]
    assert any("no room for the state: [Errno 28] No space left on device" in line for line in lines)
    assert "kept the state" in lines[-1]
    assert "no room" not in printed(own, certificate["twin"])


@pytest.mark.long
def test_a_program_that_exits_with_0_on_a_full_disk_still_fails(own, aws, tmp_path):
    path, _ = request_file(aws, tmp_path, saving(CAREFUL_SAVE))
    done, certificate = rehearse(own, tmp_path, path, "--disk-full", "algo-1@step:7")
    assert done.returncode == FAIL, done.stdout + done.stderr
    assert "the program ended on a full disk" in certificate["reason"]
    assert "results may be incomplete" in certificate["reason"]


@pytest.mark.long
def test_a_replacement_host_has_a_new_disk_with_checkpoint_and_channels(own, aws, tmp_path):
    word = unique("word")
    uri = put(aws, f"words/{word}/a.txt", word)
    program = saving(CAREFUL_SAVE).replace(
        "    torch.manual_seed(7)\n",
        '    torch.manual_seed(7)\n    print("read", open("/opt/ml/input/data/words/a.txt").read(), flush=True)\n',
    )
    path, _ = request_file(
        aws,
        tmp_path,
        program,
        InputDataConfig=[channel("words", uri.removesuffix("a.txt"), S3DataDistributionType="FullyReplicated")],
    )
    faults = ("--disk-full", "algo-1@step:7", "--kill", "algo-1@step:14")
    done, certificate = rehearse(own, tmp_path, path, *faults, "--keep")
    assert done.returncode == PASS, done.stdout + done.stderr
    (interruption,) = certificate["interruptions"]
    before = printed(own, certificate["rehearsal"], "--attempt", "1")
    assert "no room for the state" in before
    kept = [int(line.rsplit(" ", 1)[1]) for line in before.splitlines() if "kept the state" in line]
    assert int(interruption["first_step"]) <= kept[-1] + 1, "not behind what was saved last before the disk was full"
    assert interruption["restored_files"] == 1
    after = printed(own, certificate["rehearsal"], "--attempt", "2")
    assert "kept the state of step 32" in after
    assert "no room" not in after
    assert certificate["samples"]["num_compared"] == 128, "what the killed host wrote down was kept"
    assert printed(own, certificate["rehearsal"]).count(f"read {word}") == 2


@pytest.mark.long
def test_a_disk_that_is_too_small_for_the_job_itself_fails_the_twin(own, aws, tmp_path):
    path, _ = request_file(aws, tmp_path, saving(LARGE_SAVE))
    done, certificate = rehearse(own, tmp_path, path, "--disk-full", "algo-1@step:7", "--disk-size", "16MiB")
    assert done.returncode == INCONCLUSIVE, done.stdout + done.stderr
    assert "the twin ended Failed without any fault" in certificate["reason"]
    assert "give a larger --disk-size" in certificate["advice"]


@pytest.mark.parametrize(
    ("size", "words"),
    [("900000GiB", "more than half of the machine's free memory"), ("1MiB", "at least 16 MiB"), ("much", "got 'much'")],
)
@pytest.mark.long
def test_impossible_disks_are_refused_before_any_job_starts(own, aws, tmp_path, size, words):
    path, name = request_file(aws, tmp_path, forgetting(""))
    done = own.clary("rehearse", str(path), "--disk-full", "algo-1@1s", "--disk-size", size, check=False)
    assert done.returncode == USAGE
    assert words in done.stderr
    assert name not in own.clary("jobs", "--json").stdout


def test_rehearsals_leave_no_disk_on_the_machine(own):
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(own.home) not in mounts
