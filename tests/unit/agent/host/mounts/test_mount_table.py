"""The mounts of the machine that a host must show."""

from hypothesis import given
from hypothesis import strategies as st

from clary.agent.host.mounts.mount_table import is_within, submounts

TABLE = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
23 27 0:22 / /sys rw shared:7 - sysfs sysfs rw
24 27 0:6 / /dev rw - devtmpfs devtmpfs rw
25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 254:1 / /home/user rw - ext4 /dev/vdb rw
41 27 254:1 / /home rw shared:1 master:2 - ext4 /dev/vdb rw
42 27 254:2 / /mnt/two\040words\134x rw - xfs /dev/vdc rw
43 27 254:2 / /mnt/two\040words\134x rw - xfs /dev/vdd rw
44 27 0:50 / /mnt/auto rw - autofs systemd-1 rw
45 27 0:51 / /tmp/x rw - tmpfs tmpfs rw
46 27 0:52 / /tmpfiles rw - tmpfs tmpfs rw
47 27 254:0 /etc/resolv /etc/resolv.conf rw - ext4 /dev/vda rw
"""


def test_mounts_with_files_are_listed_once_and_parents_first():
    assert submounts(TABLE, covered=["/dev", "/tmp"]) == [
        "/etc/resolv.conf",
        "/home",
        "/home/user",
        "/mnt/two words\\x",
        "/tmpfiles",
    ]


def test_tmpfs_mounts_are_listed_unless_their_folder_is_covered():
    assert {"/dev/shm", "/tmp/x"} <= set(submounts(TABLE))


def test_within_compares_folders_and_not_prefixes_of_text():
    assert is_within("/a/b", "/a")
    assert is_within("/a", "/a")
    assert is_within("/a", "/")
    assert not is_within("/ab", "/a")
    assert not is_within("/", "/a")


@given(st.lists(st.lists(st.sampled_from(["a", "b", "a b", "a-"]), min_size=1, max_size=4), max_size=8))
def test_no_mount_comes_before_its_parent(paths):
    table = "".join(
        "1 0 0:1 / /{} rw - ext4 /dev/x rw\n".format("/".join(parts).replace(" ", r"\040")) for parts in paths
    )
    found = submounts(table)
    assert set(found) == {"/" + "/".join(parts) for parts in paths}
    for index, path in enumerate(found):
        assert not any(is_within(later, path) is False and is_within(path, later) for later in found[index + 1 :])
