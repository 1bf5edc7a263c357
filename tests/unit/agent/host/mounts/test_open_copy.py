"""A copy of a system folder's open files: its content, its life, and later changes of the folder."""

import contextlib
import fcntl
import os
import stat
import types

import pytest

from clary.agent.host.mounts import open_copy as module
from clary.agent.host.mounts.open_copy import open_copy


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RACY_NS", 0)  # as if nothing had changed for some seconds
    place = tmp_path / "etc"
    for name in ("", "deep", "deep/er"):
        (place / name).mkdir()
        (place / name).chmod(0o755)  # whatever the umask is
    for name, mode in (("hosts", 0o644), ("shadow", 0o640), ("deep/key", 0o600), ("deep/er/run.sh", 0o755)):
        (place / name).write_text(name)
        (place / name).chmod(mode)
    (place / "link").symlink_to("../outside")
    (place / "shut").mkdir(mode=0o700)
    (place / "shut" / "open").write_text("")
    (place / "shut" / "open").chmod(0o644)
    os.mkfifo(place / "pipe")
    (place / "pipe").chmod(0o666)
    return place


@pytest.fixture
def take(folder, tmp_path):
    taken = []

    def take_one(**changes):
        options = {"skipped": (), "own_place": None, "cache_folder": str(tmp_path / "cache")} | changes
        taken.append(open_copy(str(folder), **options))
        return taken[-1]

    yield take_one
    for one in taken:
        one.close()


def names(path):
    return sorted(
        os.path.relpath(f"{above}/{name}", path) for above, *kinds in os.walk(path) for k in kinds for name in k
    )


def copies(tmp_path):
    return {name for name in os.listdir(tmp_path / "cache" / "copies") if name != "lock"}


def test_a_copy_has_the_open_files_with_their_modes_and_names_the_closed_ones(take, folder):
    copy = take()
    assert names(copy.path) == ["deep", "deep/er", "deep/er/run.sh", "hosts", "link"]
    assert copy.closed == [f"{folder}/{name}" for name in ("deep/key", "pipe", "shadow", "shut")]
    assert os.readlink(f"{copy.path}/link") == "../outside"
    for name in ("deep/er/run.sh", "hosts", "deep"):
        there, here = os.stat(folder / name), os.stat(f"{copy.path}/{name}")
        assert (there.st_mode, there.st_uid, there.st_mtime_ns) == (here.st_mode, here.st_uid, here.st_mtime_ns)
    assert (folder / "hosts").read_text() == "hosts"


def test_hosts_share_a_copy_until_the_folder_changes(take, folder, tmp_path):
    first = take()
    assert take().path == first.path
    (folder / "new").write_text("x")
    second = take()
    assert second.path != first.path
    assert "new" not in names(first.path)
    assert len(copies(tmp_path)) == 2


def test_a_copy_that_no_host_shows_is_removed_with_the_next_one(take, folder, tmp_path):
    first, kept = take(), take(skipped=[f"{folder}/deep"])
    first.close()
    (tmp_path / "cache" / "copies" / "7.partial").mkdir()
    (folder / "new").write_text("x")
    newest = take()
    assert copies(tmp_path) == {path.split("/")[-2] for path in (kept.path, newest.path)}
    assert "deep/er" not in names(kept.path)


def test_a_file_that_may_change_again_within_a_tick_is_copied_anew(take, monkeypatch):
    monkeypatch.setattr(module, "RACY_NS", 10**18)
    assert take().path != take().path


@pytest.mark.parametrize("kind", ["files", "folders", "links"])
def test_a_time_of_change_in_the_future_hides_no_recent_change_and_costs_no_copies(folder, monkeypatch, kind):
    monkeypatch.setattr(module, "RACY_NS", 2 * 10**9)

    def state(ages_s):
        found = module._look(str(folder), ())
        entries = getattr(found, kind)
        for age_s, path in zip(ages_s, entries, strict=False):
            entries[path] = changed(entries[path], age_s)
        for other in (found.files, found.folders, found.links):
            for path in other if other is not entries else list(entries)[len(ages_s) :]:
                other[path] = changed(other[path], 3600)
        return found.state()

    def changed(status, age_s):
        now_ns = 10**18
        values = {name: getattr(status, name) for name in ("st_dev", "st_ino", "st_mode", "st_size")}
        return types.SimpleNamespace(**values, st_ctime_ns=now_ns - int(age_s * 10**9))

    monkeypatch.setattr(module.time, "time_ns", iter(range(10**18, 10**18 + 100)).__next__)
    assert state([-3600]) == state([-3600])
    assert state([1]) != state([1])
    if kind != "links":  # of which there is one
        assert state([-3600, 1]) != state([-3600, 1])


def test_a_file_that_is_closed_meanwhile_is_not_copied(folder, tmp_path):
    found = module._look(str(folder), ())
    (folder / "hosts").chmod(0o600)
    (folder / "deep/er/run.sh").unlink()
    (folder / "deep/er/run.sh").symlink_to("/etc/shadow")
    other = tmp_path / "other"
    other.mkdir()
    module._copy(found, str(other))
    assert names(other) == ["deep", "deep/er", "link"]


def test_no_link_in_the_place_of_a_folder_is_followed(folder, tmp_path, monkeypatch):
    secret = tmp_path / "root"
    (secret / "er").mkdir(parents=True)
    for name in ("key", "er/run.sh"):
        (secret / name).write_text("secret")
        (secret / name).chmod(0o644)  # open, in a folder that is not
    secret.chmod(0o700)

    def swap():
        (folder / "deep").rename(tmp_path / "aside")
        (folder / "deep").symlink_to(secret)

    found = module._look(str(folder), ())
    swap()
    copied = tmp_path / "copied"
    copied.mkdir()
    module._copy(found, str(copied))
    assert names(copied) == ["deep", "deep/er", "hosts", "link"]
    (folder / "deep").unlink()
    (tmp_path / "aside").rename(folder / "deep")

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda place: swap_and(scandir, place))

    def swap_and(call, place):
        monkeypatch.setattr(os, "scandir", call)
        entries = list(call(place))
        swap()
        return contextlib.nullcontext(entries)

    assert not [path for path in module._look(str(folder), ()).files if path.startswith("/deep")]


def test_without_the_shared_copies_a_host_makes_one_of_its_own(take, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    (cache / "copies").mkdir(parents=True)
    (cache / "copies").chmod(0o777)
    own = take(own_place=str(tmp_path / "own"))
    assert own.path == str(tmp_path / "own")
    assert "hosts" in names(own.path)
    with pytest.raises(PermissionError, match="others may write"):
        take()
    (cache / "copies").chmod(0o700)
    monkeypatch.setattr(module, "_TURN_S", 0.05)
    with open(cache / "copies" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert take(own_place=str(tmp_path / "another")).path == str(tmp_path / "another")
    assert stat.S_IMODE(os.stat(cache / "copies").st_mode) == 0o700


@pytest.mark.parametrize(("name", "value"), [("MAX_ENTRIES", 5), ("MAX_BYTES", 10)])
def test_a_folder_that_is_too_large_is_named(take, folder, monkeypatch, name, value):
    monkeypatch.setattr(module, name, value)
    with pytest.raises(OSError, match=f"{folder} has more than"):
        take()
