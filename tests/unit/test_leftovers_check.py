"""The check after every test blames the test that left a process or a file, and no other test."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DEADLINE_S = 1.5
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the check tells less without"),
    pytest.mark.timeout(300),
]

CONFTEST = """

pytest_plugins = ["leftovers_check"]
"""
# A separate plugin, because the check must not be imported before pytest imports it.
DEADLINE = f"""
import pytest

@pytest.fixture(scope="session", autouse=True)
def short_deadline():
    import leftovers_check
    leftovers_check.DEADLINE_S = {DEADLINE_S}
"""
WAYS = """
import os, socket, subprocess, time
from pathlib import Path

def orphan(seconds):
    # Neither a child nor of our environment, once the shell has ended.
    command = f"setsid sleep {seconds} >/dev/null 2>&1 &"
    subprocess.run(["sh", "-c", command], env={"PATH": os.environ["PATH"]}, check=True)

def zombie():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid
"""
LEAVING = """
import pytest
from ways import *

def test_clean_before(): pass
def test_orphan(): orphan(3600.25)
def test_clean_after_orphan(): pass
def test_zombie(): zombie()
def test_memory(): Path("/dev/shm/left-by-a-test").write_text("x")
def test_numbered_memory(): subprocess.run(["ipcmk", "-M", "4096"], check=True)
def test_mount():
    folder = Path(__file__).with_name("mounted")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], check=True)
def test_on_its_way_out(): orphan(0.2)
def test_socket():
    script = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('left.sock'); s.listen(); print(1, flush=True)"
    script += "; input()"
    process = subprocess.Popen(["python3", "-c", script], cwd=Path(__file__).parent, stdin=-1, stdout=-1)
    process.stdout.readline()
    STARTED.append(process)
STARTED = []
@pytest.fixture(scope="module")
def keeper():
    process = subprocess.Popen(["sleep", "3600.5"])
    yield process
    process.kill()
    process.wait()
def test_first_of_keeper(keeper): pass
def test_second_of_keeper(keeper): pass
@pytest.fixture(scope="module")
def forgetful():
    orphan(3600.75)
def test_of_forgetful_fixture(forgetful): pass
"""


# Unit tests beside a process that a fixture keeps.
KEPT = """
import leftovers_check
import pytest
from ways import *

CENSUSES = []
take_census = leftovers_check.LeftoversCheck._census
def count(check, entries):
    CENSUSES.append(1)
    return take_census(check, entries)
leftovers_check.LeftoversCheck._census = count

@pytest.fixture(scope="session", autouse=True)
def keeper(short_deadline):
    process = subprocess.Popen(["sleep", "3600.6"])
    yield process
    process.kill()
    process.wait()
def test_first(): pass
@pytest.mark.parametrize("number", range(20))
def test_that_leaves_nothing(number): pass
def test_few_censuses_were_taken(): assert len(CENSUSES) < 8, len(CENSUSES)
def test_orphan(): orphan(3600.8)
def test_after_the_orphan(): pass
def test_loop():
    loop = "while :; do sleep 0.21; done"
    subprocess.run(["sh", "-c", f"setsid timeout 60 sh -c '{loop}' >/dev/null 2>&1 &"], check=True)
def test_after_the_loop(): time.sleep(0.3)
def test_later_after_the_loop(): time.sleep(0.3)
def test_memory(): Path("/dev/shm/left-by-a-unit-test").write_text("x")
def test_after_the_memory(): pass
def test_zombie(): zombie()
def test_after_the_zombie(): pass
"""


@pytest.fixture
def suite(tmp_path):
    """Runs test files under the check; returns the blamed tests with the message for each, and the output."""

    def run(files, *arguments):
        for name, text in {
            "conftest.py": CONFTEST, "ways.py": WAYS, "short.py": DEADLINE, **files
        }.items():  # fmt: skip
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(TESTS), *sys.path])
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "short", *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280,
        )  # fmt: skip
        output = done.stdout + done.stderr
        for pid in re.findall(r"- process (\d+) \((?:sleep|python3|timeout|sh)", output):
            subprocess.run(["kill", "-9", pid], check=False)
        blamed = re.split(r"^_+ ERROR at teardown of (\w+) _+$", output, flags=re.MULTILINE)[1:]
        return dict(zip(blamed[::2], blamed[1::2], strict=True)), output

    return run


@pytest.mark.long
def test_each_kind_is_found_once_and_kept_or_ending_leftovers_are_ignored(suite):
    blamed, output = suite({"test_leaving.py": LEAVING})
    assert set(blamed) == {
        "test_orphan", "test_zombie", "test_memory", "test_numbered_memory", "test_mount", "test_socket",
        "test_of_forgetful_fixture",
    }, output  # fmt: skip
    assert "sleep 3600.25" in blamed["test_orphan"]
    assert re.search(r"remove it: kill -9 \d+", blamed["test_orphan"])
    assert re.search(r"- zombie \d+", blamed["test_zombie"])
    assert "remove it: rm /dev/shm/left-by-a-test" in blamed["test_memory"]
    assert re.search(
        r"System V shared memory \d+ .*4096 bytes.*remove it: ipcrm -m \d+", blamed["test_numbered_memory"]
    )
    assert re.search(r"- mount \S+/mounted \(tmpfs\).*remove it: umount -l", blamed["test_mount"])
    assert "test_leaving.py::test_socket" in blamed["test_socket"], "it says which test started the process"
    assert "fixture forgetful" in blamed["test_of_forgetful_fixture"]
    assert not Path("/dev/shm/left-by-a-test").exists(), "the worker has memory of its own"


def test_unit_tests_beside_a_kept_process_take_no_census_each_and_are_blamed_all_the_same(suite):
    blamed, output = suite({"unit/test_kept.py": KEPT})
    assert set(blamed) == {"test_orphan", "test_loop", "test_memory", "test_zombie"}, output
    assert "31 passed, 4 errors" in output, output


def test_a_worker_is_not_blamed_for_the_leftovers_of_another(suite):
    meet = """
from ways import *
def wait_for(name):
    deadline = time.monotonic() + 60
    while not Path(__file__).with_name(name).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
def tell(name): Path(__file__).with_name(name).touch()
"""
    leaving = meet + """
def test_leaves():
    orphan(3600.33)
    Path("/dev/shm/left-in-one").write_text("x")
    tell("left")
def test_waits_until_the_other_is_done(): wait_for("done")
"""  # fmt: skip
    clean = meet + """
def test_ends_while_it_is_left(): wait_for("left")
def test_next(): tell("done")
"""  # fmt: skip
    blamed, output = suite({"test_one.py": leaving, "test_two.py": clean}, "-n", "2", "--dist", "loadfile")
    assert set(blamed) == {"test_leaves"}, output
    assert "4 passed" in output, output
