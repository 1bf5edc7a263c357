"""Paths that programs must not see are found behind mounts at other paths."""

import pytest

from clary.base.mounted_places import shown_at

ROOT = "22 1 254:0 / / rw - ext4 /dev/vda rw"
DATA = "30 22 254:1 / /srv/data rw - ext4 /dev/vdb rw"
HOME = "/root/.clary"


def table(*binds):
    lines = [f"{40 + number} 22 {device} {root} {point} rw - ext4 x rw" for number, (device, root, point) in binds]
    return "\n".join((ROOT, DATA, *lines))


def found(folder, *binds, place=HOME):
    return shown_at(folder, place, mountinfo=table(*enumerate(binds)))


def test_a_folder_that_shows_no_part_of_a_hidden_path_is_accepted():
    assert found("/srv/data") is None
    assert found("/root/.clary-data") is None
    assert found("/srv", ("254:1", "/root/.clary", "/srv/other")) is None, "another file system"
    assert found("/srv/data", ("254:0", "/root/.clary", "/srv/elsewhere")) is None, "not below"


@pytest.mark.parametrize("folder", ["/", "/root", "/root/.clary", "/root/.clary/secrets"])
def test_a_hidden_path_is_found_in_its_parents_and_in_its_parts(folder):
    assert found(folder) == folder


@pytest.mark.parametrize("root", ["/", "/root", "/root/.clary", "/root/.clary/secrets"])
@pytest.mark.parametrize("point", ["/srv/data/deep/state", "/srv/data", "/srv/data/with\\040space"])
def test_a_bind_mount_of_a_hidden_path_or_of_its_parents_is_found(root, point):
    assert found("/srv/data", ("254:0", root, point)) == point.replace("\\040", " ")
    assert found("/srv", ("254:0", root, point)) == point.replace("\\040", " ")


def test_a_hidden_path_that_is_a_mount_is_found_by_its_source():
    mounted = ("254:1", "/state", HOME)
    assert found("/srv/data", mounted) == "/srv/data"
    assert found("/srv/data/state/secrets", mounted) == "/srv/data/state/secrets"
    assert found("/srv/data/sets", mounted) is None
    covered = ("254:7", "/", HOME)
    assert found("/srv/data", mounted, covered) is None, "the last mount covers the one before"
