"""Which folders a search for closed files looks into again."""

import os
import time

import pytest

from clary.agent.host.mounts import closed_files


@pytest.mark.parametrize(("age_s", "is_noted"), [(-3600, True), (1, False), (3600, True)])
def test_a_folder_is_searched_again_unless_each_later_change_gives_it_another_time(
    tmp_path, monkeypatch, age_s, is_noted
):
    tmp_path.chmod(0o755)
    changed_ns = os.stat(tmp_path).st_ctime_ns
    monkeypatch.setattr(time, "time_ns", lambda: changed_ns + age_s * 10**9)
    search = closed_files._Search(str(tmp_path), ())
    search.look_into(str(tmp_path))
    assert search.stamps == {str(tmp_path): changed_ns if is_noted else 0}
