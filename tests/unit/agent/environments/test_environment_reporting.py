"""Paths and modes of libraries that report on a training, unless the user has set others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clary.agent.environments.config_files import inside_tree, status_token_file, write_tree
from clary.agent.environments.variables import service_variables
from clary.contract.ml_tree import MlTree
from clary.contract.training_values import status_token
from clary.testing.launch_plans import make_plan


def variables_of(plan):
    inside = inside_tree(plan, MlTree(Path("/srv/ml")))
    return service_variables(plan, plan.hosts[0], inside, python="/env/bin/python", shims_folder="/shims", machine={})


def test_trackers_write_into_the_folder_that_becomes_the_output():
    variables = variables_of(make_plan())
    assert variables["MLFLOW_TRACKING_URI"] == "file:/opt/ml/output/data/mlruns"
    assert variables["MLFLOW_ALLOW_FILE_STORE"] == "true"
    assert (variables["WANDB_MODE"], variables["WANDB_DIR"]) == ("offline", "/opt/ml/output/data")


@pytest.mark.parametrize("name", ["WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"])
def test_a_tracker_with_a_users_server_is_not_set_offline(name):
    variables = variables_of(make_plan(user_environment={name: "mine", "MLFLOW_TRACKING_URI": "https://mine"}))
    assert variables.get("WANDB_MODE", "") in ("", "mine")
    assert variables["MLFLOW_TRACKING_URI"] == "https://mine"


def test_a_program_gets_the_url_for_progress_and_the_path_of_its_token(tmp_path):
    plan = make_plan(network_isolation=False)
    variables = variables_of(plan)
    path = f"/clary/v1/status/{plan.job_name}/1/{plan.hosts[0].name}"
    assert variables["KUBEFLOW_TRAINER_SERVER_URL"] == plan.job_endpoint.url + path
    assert variables["KUBEFLOW_TRAINER_SERVER_TOKEN"] == "/opt/ml/.clary/status-token"
    tree = MlTree(tmp_path)
    write_tree(plan, plan.hosts[0], tree)
    token = status_token_file(tree).read_text()
    assert token == status_token(plan.agent_token, job=plan.job_name, attempt=1, host=plan.hosts[0].name)
    assert plan.agent_token not in token


def test_a_host_that_cannot_reach_the_service_gets_no_url_for_progress():
    variables = variables_of(replace(make_plan(), network_isolation=True))
    assert not [name for name in variables if name.startswith("KUBEFLOW")]
    assert variables["WANDB_MODE"] == "offline"
