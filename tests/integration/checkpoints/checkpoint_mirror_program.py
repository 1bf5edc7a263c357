"""Program of a host that restores its checkpoints, mirrors them and trains, until a test kills it.

Arguments: URL and keys of the store as JSON, prefix, folder, host, hosts, seconds to train. A reader can check its
files: every file of `step-N` holds N, a step appears by one rename, and `rolling/state`, which is replaced too often to
ever count as settled, repeats one number.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from clary.agent.checkpoints.host_checkpoints import HostCheckpoints
from clary.agent.checkpoints.outcomes import Listeners
from clary.contract.launch_plan import Credentials, Endpoint, Isolation
from clary.contract.ml_tree import MlTree
from clary.contract.object_store import ObjectStore
from clary.testing.launch_plans import make_hosts, make_plan

NUM_FILES = 4
LARGE_EVERY = 4
LARGE_BYTES = 17 << 20  # an upload of more than one part
KEEP = 3
STEP_S = 0.45
ROLL_S = 0.05
ROLL_LINES = 5000


def checkpoints_of(store: dict, prefix: str, folder: Path, host: str, num_hosts: int) -> HostCheckpoints:
    """Return the checkpoints of a host whose `/opt/ml` is `folder`."""
    keys = Credentials(access_key_id=store["key"], secret_access_key=store["secret"])
    plan = make_plan(
        hosts=make_hosts(num_hosts, isolation=Isolation.PROCESSES),
        isolation=Isolation.PROCESSES,
        object_store=Endpoint(url=store["url"], region="us-west-2", credentials=keys),
        checkpoint_s3_uri=prefix,
        checkpoint_interval_s=0.2,
    )
    return HostCheckpoints(plan, host, tree=MlTree(folder), host_folder=folder.parent)


def restore_into(store: dict, prefix: str, folder: Path, host: str = "algo-1", num_hosts: int = 1) -> HostCheckpoints:
    """Restore the checkpoints into a folder; return the host's checkpoints."""
    folder.mkdir(parents=True)
    checkpoints = checkpoints_of(store, prefix, folder, host, num_hosts)
    with ObjectStore(checkpoints._plan.object_store) as client:
        checkpoints.restore(client)
    return checkpoints


def newest_step(folder: Path) -> int:
    """Return the number of the newest whole step in a folder; AssertionError if any step is not whole."""
    newest = 0
    for step in folder.glob("step-*"):
        if step.suffix:
            continue
        number = int(step.name.removeprefix("step-"))
        texts = [(step / f"part-{index}").read_bytes() for index in range(NUM_FILES)]
        assert all(text.startswith(f"{number}\n".encode()) for text in texts), step
        assert len(texts[0]) == size_of(number), step
        newest = max(newest, number)
    return newest


def rolling_number(folder: Path) -> int:
    """Return the number in `rolling/state`, 0 if there is no file; AssertionError if the file is not whole."""
    place = folder / "rolling/state"
    if not place.exists():
        return 0
    lines = place.read_text().splitlines()
    assert len(lines) == ROLL_LINES, place
    assert set(lines) == {lines[0]}, place
    return int(lines[0])


def size_of(number: int) -> int:
    """Return the size of the first file of a step."""
    return LARGE_BYTES if number % LARGE_EVERY == 0 else 1000 + number


def train(folder: Path, until_s: float) -> None:
    """Write steps until the time is over."""
    number, rolled = newest_step(folder), rolling_number(folder)
    (folder / "rolling").mkdir(exist_ok=True)
    while time.monotonic() < until_s:
        number += 1
        part = folder / f"step-{number}.part"
        part.mkdir()
        for index in range(NUM_FILES):
            size = size_of(number) if index == 0 else 10
            (part / f"part-{index}").write_bytes(f"{number}\n".encode().ljust(size, b"."))
        part.rename(folder / f"step-{number}")
        latest = folder / "latest.part"
        latest.write_text(f"step-{number}")
        latest.replace(folder / "latest")
        shutil.rmtree(folder / f"step-{number - KEEP}", ignore_errors=True)
        next_step_s = time.monotonic() + STEP_S
        while time.monotonic() < next_step_s:
            rolled += 1
            rolling = folder / "rolling.part"
            rolling.write_text(f"{rolled}\n" * ROLL_LINES)
            rolling.replace(folder / "rolling/state")
            time.sleep(ROLL_S)


def main() -> None:
    """Restore, mirror, train."""
    store, prefix, folder, host, num_hosts, seconds = sys.argv[1:]
    checkpoints = restore_into(json.loads(store), prefix, Path(folder), host, int(num_hosts))
    checkpoints.start(Listeners(tell=lambda facts: None, say=print, note=print))
    print("mirroring", flush=True)
    train(checkpoints.folder.path, time.monotonic() + float(seconds))
    print(json.dumps(list(checkpoints.flush(20.0).missed)), flush=True)
    checkpoints.close()


if __name__ == "__main__":
    main()
