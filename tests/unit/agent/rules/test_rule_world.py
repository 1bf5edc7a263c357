"""The facts about an attempt that its rules receive."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest

from clary.agent.host.sandbox import Sandbox
from clary.agent.rules.rule_world import make_rule_world
from clary.contract.job_rules import MirrorPlan
from clary.contract.ml_tree import MlTree
from clary.testing.launch_plans import make_hosts, make_plan

MIRROR = MirrorPlan(what="tensors", local_path="/opt/ml/output/tensors", s3_uri="s3://b/t/", marks_end=True)
BEGAN_AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("attempt", "is_bounded"), [(1, False), (2, True)])
def test_tensors_saved_before_the_start_of_a_later_attempt_are_excluded(tmp_path, attempt, is_bounded):
    plan = replace(make_plan(hosts=make_hosts(2)), mirrors=(MIRROR,), attempt=attempt)
    context = SimpleNamespace(
        environment=dict, python="python3", inside=SimpleNamespace(code=PurePosixPath("/opt/ml/code"))
    )
    sandbox = Sandbox(
        isolation=plan.isolation,
        hostname="algo-1",
        host_folder=str(tmp_path),
        ml_folder=str(tmp_path / "ml"),
        network_namespace_path=None,
        user_namespace_path=None,
        hosts_file={},
        resources=plan.hosts[0].resources,
        cgroup_name="job-1-algo-1",
        binds=(),
        hidden_folders=(),
    )
    world = make_rule_world(
        plan, context, sandbox, folder=tmp_path / "rules", tree=MlTree(Path(tmp_path / "ml")), began_at=BEGAN_AT
    )
    # Programs of this attempt begin later, on every host; programs of the previous attempt had ended before.
    assert world.since == (pytest.approx(BEGAN_AT.timestamp(), abs=3.0) if is_bounded else 0.0)
    assert world.since < BEGAN_AT.timestamp()
    assert world.own_end == f"ended/algo-1.try-{attempt}.of-2"
