"""Paths of folders that are mirrored while a program runs, and folders that an agent refuses to make."""

from dataclasses import replace
from pathlib import Path

import pytest

from clary.agent.artifacts.mirrored_places import MirroredPlace, mirrored_places
from clary.base.errors import AgentError, Fault
from clary.contract.job_rules import MirrorPlan
from clary.contract.ml_tree import MlTree
from clary.testing.launch_plans import make_plan


def place_of(folder: Path, local_path: str) -> MirroredPlace:
    mirror = MirrorPlan(what="tensors", local_path=local_path, s3_uri="s3://b/t/")
    (folder / "ml").mkdir()
    (place,) = mirrored_places(replace(make_plan(), mirrors=(mirror,)), MlTree(folder / "ml"), folder)
    return place


@pytest.mark.parametrize("local_path", ["/opt/ml/output/tensors", "//opt/ml/output//tensors/"])
def test_a_folder_below_opt_ml_lies_in_the_hosts_tree_however_it_is_spelled(tmp_path: Path, local_path: str) -> None:
    place = place_of(tmp_path, local_path)
    place.make()
    assert place.bind is None
    assert (tmp_path / "ml/output/tensors").is_dir()


def test_any_other_folder_is_bound_to_its_path(tmp_path: Path) -> None:
    place = place_of(tmp_path, "//data/of/mine")
    place.make()
    assert place.bind is not None
    assert place.bind.target == "/data/of/mine"


@pytest.mark.parametrize("local_path", ["/var/run/x", "//etc", "//proc", "/opt/ml", "//opt/ml/input", "/run/x"])
def test_a_folder_that_would_hide_or_store_the_programs_world_is_not_made(tmp_path: Path, local_path: str) -> None:
    with pytest.raises(AgentError, match=r"LocalPath of tensors .* cannot be used") as caught:
        place_of(tmp_path, local_path).make()
    assert caught.value.fault is Fault.USER
