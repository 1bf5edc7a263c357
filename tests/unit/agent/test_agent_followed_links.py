"""A program replaces paths that the agent reads or writes by links and other entries; the machine stays untouched."""

import contextlib
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from clary.agent.archives import TreeSource, has_members
from clary.agent.artifacts.folder_mirror import FolderMirror
from clary.agent.autopsy.call_records import read_records
from clary.agent.autopsy.clues import read_records as read_clues
from clary.agent.checkpoints.folder import CheckpointFolder
from clary.agent.checkpoints.scanning import scan
from clary.agent.environments.config_files import write_tree
from clary.agent.environments.stop_notice import write_stop_notice
from clary.agent.environments.train_library import write_train_library
from clary.agent.host.leftovers import remove_tree
from clary.agent.metrics.step_source import StepSource
from clary.agent.small_files import names_in, open_regular, read_start, remove, write_whole
from clary.agent.training.growing_files import read_piece, walk
from clary.base.errors import AgentError
from clary.contract.ml_tree import MlTree
from clary.testing.fake_clock import FakeClock
from clary.testing.launch_plans import make_plan

KINDS = ("link", "hard-link", "pipe", "socket", "folder", "file")
SECRET = b"of the machine\n"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Make a folder of the machine with a file at each path that the agent might reach through a link."""
    machine = tmp_path / "machine"
    for name in ("file", "stop-notice.json", "x.steps", "x.json", "steps/x.steps", "errors/x.json", "data/file"):
        (machine / name).parent.mkdir(parents=True, exist_ok=True)
        (machine / name).write_bytes(SECRET)
        (machine / name).chmod(0o600)
    return machine


@pytest.fixture
def untouched(victim: Path):
    """Check at the end that nothing in the machine's folder has changed."""

    def state() -> dict[str, tuple[object, ...]]:
        found = {}
        for path in sorted(victim.rglob("*")):
            status = path.lstat()
            found[str(path)] = (status.st_mode, status.st_uid, status.st_size, path.is_dir() or path.read_bytes())
        return found

    before = state()
    yield
    assert state() == before


@pytest.fixture
def tree(tmp_path: Path) -> MlTree:
    """Return a program's tree."""
    tree = MlTree(tmp_path / "ml")
    plan = make_plan()
    write_tree(plan, plan.hosts[0], tree)
    return tree


def put(kind: str, place: Path, target: Path) -> None:
    """Make an entry of this kind at a path, and rename the previous entry."""
    if os.path.lexists(place):
        place.rename(place.with_name(f"{place.name}-moved"))
    match kind:
        case "link":
            place.symlink_to(target)
        case "hard-link":
            os.link(target, place)
        case "pipe":
            os.mkfifo(place)
        case "socket":
            folder = os.open(place.parent, os.O_PATH)  # a socket's path has at most 107 bytes
            with socket.socket(socket.AF_UNIX) as end:
                end.bind(f"/proc/self/fd/{folder}/{place.name}")
            os.close(folder)
        case "folder":
            place.mkdir()
        case "file":
            place.write_bytes(b"")


@pytest.mark.usefixtures("untouched")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_the_tree_is_replaced_or_refused_and_no_link_followed(kind, tree, victim):
    for place in (
        tree.root / ".clary" / "stop-notice.json",
        tree.config / "hyperparameters.json",
        tree.root / ".clary" / "python" / "METADATA",
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        put(kind, place, victim / "file")
    plan = make_plan()
    for write in (
        lambda: write_stop_notice(tree, reason="r", grace_s=1.0, clock=FakeClock(NOW)),
        lambda: write_tree(plan, plan.hosts[0], tree),
        lambda: write_train_library(tree),
    ):
        try:
            write()
        except OSError:
            assert kind == "folder"
    write_whole(tree.root, ("model", "written"), b"x")
    remove(tree.root, (".clary", "stop-notice.json"))


@pytest.mark.usefixtures("untouched")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("place", [".clary", "input", "input/config", "output", ".clary/steps", ".clary/errors"])
def test_a_link_in_place_of_a_folder_of_the_tree_leads_nowhere(place, tree, victim):
    put("link", tree.root / place, victim)
    plan = make_plan()
    acts = (
        lambda: write_stop_notice(tree, reason="r", grace_s=1.0, clock=FakeClock(NOW)),
        lambda: write_tree(plan, plan.hosts[0], tree),
        lambda: write_train_library(tree),
        lambda: write_whole(tree.root, (*place.split("/"), "file"), b"x"),
    )
    for act in acts:
        with contextlib.suppress(OSError):
            act()
    parts = place.split("/")
    remove(tree.root, (*parts, "file"))
    assert read_start(tree.root, (*parts, "file"), max_bytes=99) is None
    assert open_regular(tree.root, (*parts, "file")) is None
    assert names_in(tree.root, parts) == []
    assert read_piece(tree.root, f"{place}/file", offset=0, max_bytes=9) is None
    assert list(walk(tree.root, place)) == []
    assert read_clues(tree.root, parts) == ()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("place", [".clary", ".clary/steps"])
def test_records_of_ranks_are_not_read_through_a_folder_that_became_a_link(place, tree, tmp_path, monkeypatch):
    opened = []
    real_open = os.open
    machine = tmp_path / "machine"
    (machine / "steps").mkdir(parents=True)
    for folder in (machine, machine / "steps"):
        for name in ("1-1.steps", "1-1.calls"):
            (folder / name).write_bytes(SECRET)
    put("link", tree.root / place, machine)

    def watched(path, *args, **kwargs):
        opened.append(str(path))
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", watched)
    parts = (".clary", "steps")
    source = StepSource(tree.root, parts)
    assert source.read(0.0) == {}
    assert source._files == {}
    assert source._refused == set()
    assert read_records(tree.root, below=parts).records == ()
    assert not [path for path in opened if "machine" in path or path.endswith((".steps", ".calls"))]


@pytest.mark.usefixtures("untouched")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_checkpoints_hold_nothing_of_the_machine(kind, tree, victim):
    if kind == "hard-link":
        pytest.skip("a hard link is the file itself: the kernel keeps hosts from making one")
    put(kind, tree.model / "secret", victim / "file")
    put(kind, tree.checkpoints / "secret", victim / "file")
    assert list(scan(CheckpointFolder(tree.root, ("checkpoints",))).files) == (["secret"] if kind == "file" else [])
    put("link", tree.checkpoints, victim)
    with pytest.raises(OSError, match="symbolic link"):
        scan(CheckpointFolder(tree.root, ("checkpoints",)))
    with pytest.raises(OSError, match="symbolic link"):
        CheckpointFolder(tree.root, ("checkpoints",)).make()
    put("link", tree.output, victim)
    for root in (tree.output_data, tree.failure, tree.output / "file"):
        with contextlib.suppress(AgentError):
            assert not has_members([TreeSource(root=root, home=tree.root)])
    mirror = FolderMirror(tree.root, ("output", "data"), s3_uri="s3://b/p", open_store=lambda: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(OSError, match="symbolic link"):
        mirror.opened()


@pytest.mark.usefixtures("untouched")
def test_a_tree_of_any_depth_is_removed_and_no_link_in_it_followed(tree, victim):
    put("link", tree.root / "machine", victim)
    put("hard-link", tree.root / "same", victim / "file")
    here = os.open(tree.root, os.O_RDONLY)
    for _ in range(1500):  # deeper than Python's recursion limit
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    remove_tree(str(tree.root))
    assert not tree.root.exists()
    tree.root.symlink_to(victim)
    remove_tree(str(tree.root))
    assert not tree.root.is_symlink()
