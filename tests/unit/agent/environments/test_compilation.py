"""Variables of jobs with compiler_config or sagemaker_amp, and the cache key of compiled code."""

from dataclasses import replace
from pathlib import Path

import pytest

from clary.agent.environments.compilation import compilation_variables, compiled_name
from clary.agent.environments.variables import service_variables
from clary.contract.launch_plan import Channel, Isolation, LaunchPlan
from clary.contract.ml_tree import OPT_ML, MlTree
from clary.contract.settings.platform_keys import warnings as key_warnings
from clary.testing.launch_plans import make_plan

INSIDE = MlTree(OPT_ML)
COMPILER = {"sagemaker_training_compiler_enabled": "true"}
ENVIRONMENT = Path("/envs/train")


def plan_of(**options: object) -> LaunchPlan:
    return make_plan(**{"hyperparameters": {**COMPILER, "epochs": "3", "lr": "0.1"}, **options})  # type: ignore[arg-type]


def variables_of(hyperparameters: dict[str, str], **options: object) -> dict[str, str]:
    plan = plan_of(hyperparameters=hyperparameters, **options)
    return service_variables(plan, plan.hosts[0], INSIDE, python="/p/bin/python", shims_folder="/s", machine={})


def name_of(plan: LaunchPlan, *, code: str = "a", environment: Path = ENVIRONMENT) -> str:
    return compiled_name(plan, code_digest=code, environment=environment)


def test_a_job_without_compiler_options_gets_no_variables() -> None:
    plan = plan_of(hyperparameters={"amp": "true", "sagemaker_training_compiler_enabled": "false"})
    assert compilation_variables(plan, plan.hosts[0], INSIDE) == {}


def test_a_job_with_compiler_config_gets_a_folder_for_compiled_code() -> None:
    found = variables_of(COMPILER)
    assert found["CLARY_COMPILE"] == "1"
    assert found["TORCHINDUCTOR_CACHE_DIR"] == "/opt/ml/.clary/compiled"
    assert int(found["TORCHINDUCTOR_COMPILE_THREADS"]) >= 1
    assert found["TF_XLA_FLAGS"] == "--tf_xla_auto_jit=2"
    assert "CLARY_COMPILE_DEBUG" not in found
    debug = variables_of({**COMPILER, "sagemaker_training_compiler_debug_mode": "true"})
    assert debug["CLARY_COMPILE_DEBUG"] == "/opt/ml/output/data/compiler"


def test_the_users_own_variables_win() -> None:
    found = variables_of(COMPILER, user_environment={"CLARY_COMPILE": "0", "TORCHINDUCTOR_CACHE_DIR": "/mine"})
    assert (found["CLARY_COMPILE"], found["TORCHINDUCTOR_CACHE_DIR"]) == ("0", "/mine")


def test_sagemaker_amp_is_a_known_hyperparameter_of_the_platform() -> None:
    assert variables_of({"sagemaker_amp": "true"})["CLARY_AMP"] == "1"
    assert "CLARY_AMP" not in variables_of({"amp": "true"})
    assert key_warnings({"sagemaker_amp": "true"}, has_command=False) == ()
    assert "has no effect" in key_warnings({"sagemaker_amb": "true"}, has_command=False)[0]


def test_numeric_hyperparameters_job_name_and_attempt_do_not_change_the_key() -> None:
    plan = plan_of()
    other = {
        **COMPILER,
        "epochs": "4",
        "lr": "0.2",
        "sagemaker_submit_directory": '"s3://b/else/sourcedir.tar.gz"',
        "sagemaker_job_name": '"another"',
    }
    assert name_of(plan) == name_of(replace(plan, hyperparameters=other, attempt=7))
    own = replace(plan, job_name="a", hyperparameters={**COMPILER, "model_dir": '"s3://b/a/model"'})
    assert name_of(own) == name_of(
        replace(own, job_name="c", hyperparameters={**COMPILER, "model_dir": '"s3://b/c/model"'})
    )


@pytest.mark.parametrize(
    "change",
    [
        {"hyperparameters": {**COMPILER, "epochs": "3", "lr": "0.1", "model": '"evil/model"'}},
        {"hyperparameters": {**COMPILER, "epochs": "3", "lr": "0.1", "sagemaker_program": '"other.py"'}},
        {"user_environment": {"PYTHONPATH": "/opt/ml/input/data/evil"}},
        {"channels": (Channel(name="train", s3_uri="s3://b/other"),)},
        {"command": ("python", "x.py")},
        {"checkpoint_s3_uri": "s3://b/checkpoints"},
        {"isolation": Isolation.NAMESPACES},
    ],
    ids=str,
)
def test_every_possible_source_of_code_changes_the_key(change: dict[str, object]) -> None:
    plan = replace(plan_of(), isolation=Isolation.PROCESSES)
    assert name_of(plan) != name_of(replace(plan, **change))  # type: ignore[arg-type]


def test_other_code_and_another_environment_change_the_key() -> None:
    plan = plan_of()
    assert len({name_of(plan), name_of(plan, code="b"), name_of(plan, environment=Path("/envs/other"))}) == 3
