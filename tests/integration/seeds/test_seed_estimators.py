"""Estimators of the listings, run by SDK v2; where the SDK refuses one, the nearest that it sends."""

import pytest
from running_service import SDK2_PYTHON
from seed_jobs import estimator_listings
from seed_listings import completed_of, facts_of, run_listings

from clary.contract.settings.distribution import MEANT_BY_GUIDES
from needs import require_python

pytestmark = [pytest.mark.long(150), pytest.mark.clients, pytest.mark.timeout(600), pytest.mark.xdist_group("seeds")]

RIGHT_SMDDP = '{"smdistributed": {"dataparallel": {"enabled": True}}}'
NOTICE = "clary: smdistributed.dataparallel has no DistributedDataParallel of its own in AWS's library; understood as"


@pytest.fixture(scope="module")
def told(service, digits, buckets, tmp_path_factory):
    """The outcome of every listing by its name."""
    require_python(SDK2_PYTHON)
    folder = tmp_path_factory.mktemp("estimators") / "run"
    return run_listings(service, SDK2_PYTHON, "estimator_client.py", folder, estimator_listings(digits))


@pytest.mark.parametrize("name", ["smddp_top_level", "smp_top_level_short", "pytorchx"])
def test_a_key_that_the_sdk_drops_leaves_hosts_alone_and_the_job_says_which_form_was_meant(told, name):
    log = completed_of(told[name])
    sent = [key for key in told[name]["hyperparameters"] if "distrib" in key or "parallel" in key or "mpi" in key]
    assert sent == [], "the SDK sends nothing of such a key, so nothing can be served"
    assert all("RANK" not in facts["variables"] for facts in facts_of(log))
    assert len(facts_of(log)) == 2
    (words,) = [line for line in log if "2 hosts and no distribution" in line]
    assert words.endswith(MEANT_BY_GUIDES)


def test_smddp_as_printed_wraps_the_model_of_ranks_that_mpirun_would_start(told):
    facts = facts_of(completed_of(told["smddp"]))
    assert [(one["world_size"], one["backend"], one["is_one_model"]) for one in facts] == [(2, "smddp", True)] * 2
    of_smddp = "smdistributed.dataparallel.torch.parallel.distributed.DistributedDataParallel"
    assert {one["wrapped_by"][0] for one in facts} == {of_smddp}


def test_ddp_from_the_package_s_top_level_fails_with_the_right_form_where_the_sdk_dropped_the_key(told):
    assert told["wraps_top_level"]["status"] == "Failed"
    assert f"Start it with distribution={RIGHT_SMDDP}" in told["wraps_top_level"]["reason"]


def test_ddp_from_the_package_s_top_level_joins_the_ranks_and_says_so_where_the_key_is_smdistributed(told):
    log = completed_of(told["wraps_as_meant"])
    facts = facts_of(log)
    assert [(one["world_size"], one["backend"], one["is_one_model"]) for one in facts] == [(2, "smddp", True)] * 2
    (said,) = [line for line in log if NOTICE in line]
    assert "after init_process_group('smddp'), which the program has not called" in said


def test_torchrun_by_its_key_gives_each_process_its_rank(told):
    facts = facts_of(completed_of(told["torchrun"]))
    assert sorted((one["variables"]["RANK"], one["variables"]["WORLD_SIZE"]) for one in facts) == [
        ("0", "2"),
        ("1", "2"),
    ]


def test_train_py_as_printed_learns_digits_on_two_ranks_with_mnist_s_files_beside_it(told):
    facts = facts_of(completed_of(told["digits"]))
    assert len({one["weight"] for one in facts}) == 1, "both ranks have one model"
    assert [one["num_held_out"] for one in facts] == [150, 150]
    assert facts[0]["accuracy"] > 0.75


def test_smp_s_top_level_key_as_printed_is_no_python_for_its_comment_of_c(told):
    assert told["smp_top_level"]["error"].startswith("SyntaxError: invalid syntax")


def test_smp_s_top_level_key_with_a_comment_of_python_is_dropped_by_the_sdk(told):
    log = completed_of(told["smp_top_level_in_python"])
    assert "mp_parameters" not in told["smp_top_level_in_python"]["hyperparameters"]
    assert any(MEANT_BY_GUIDES in line for line in log)


def test_smp_without_mpi_as_printed_has_no_ranks_to_cut_into_eight_and_says_what_to_add(told):
    assert told["smp"]["status"] == "Failed"
    assert "start a multiple of 8 processes" in told["smp"]["reason"]
    assert any("add 'mpi': {'enabled': True, ...} to distribution" in line for line in told["smp"]["log"])


def test_smp_with_mpi_beside_it_runs_the_printed_step_over_eight_partitions(told):
    facts = facts_of(completed_of(told["smp_and_mpi"]))
    assert sorted(one["stage"] for one in facts) == list(range(8))
    assert all(one["loss"] == pytest.approx(one["expected"], rel=1e-5) for one in facts)
    assert all(0 < one["num_parameters"] < 18 for one in facts), "each rank holds a part of the model"


def test_horovod_s_estimator_is_in_no_sdk(told):
    assert told["horovod"]["error"] == "ModuleNotFoundError: No module named 'sagemaker.horovod'"


def test_horovod_under_mpi_of_pytorch_s_estimator_sums_over_all_ranks(told):
    facts = facts_of(completed_of(told["horovod_by_mpi"]))
    assert sorted((one["rank"], one["of_mpi"], one["size"], one["sum"]) for one in facts) == [
        (0, 0, 2, 3.0),
        (1, 1, 2, 3.0),
    ]


def test_pytorchxla_switched_off_is_refused_by_the_sdk_all_the_same(told):
    assert "PyTorch XLA is currently only supported when SageMaker Training Compiler" in told["xla_off"]["error"]


def test_a_dict_as_compiler_config_is_refused_by_the_sdk(told):
    assert "Instead got <class 'dict'>" in told["compiler"]["error"]


def test_the_compiler_by_its_class_with_the_last_version_that_the_sdk_has_it_for_is_accepted(told):
    completed_of(told["compiler_by_its_class"])
    sent = told["compiler_by_its_class"]["hyperparameters"]
    assert sent["sagemaker_training_compiler_enabled"] == "true"
    assert sent["sagemaker_training_compiler_debug_mode"] == "false"


def test_spot_capacity_as_printed_has_both_limits(told):
    completed_of(told["spot"])
    job = told["spot"]["job"]
    assert job["EnableManagedSpotTraining"] is True
    assert job["StoppingCondition"] == {"MaxRuntimeInSeconds": 1800, "MaxWaitTimeInSeconds": 3600}
    assert 0 < job["BillableTimeInSeconds"] <= job["TrainingTimeInSeconds"]


def test_amp_as_printed_reaches_the_program_and_its_autocast(told):
    (facts,) = facts_of(completed_of(told["amp"]))
    assert (facts["amp"], facts["dtypes"]) == (True, ["torch.bfloat16"])  # what CPUs have for float16
    assert facts["losses"][-1] < facts["losses"][0] / 10


def test_checkpoints_as_printed_are_there_again_in_the_next_job(told):
    (first,) = facts_of(completed_of(told["checkpoints"]))
    (second,) = facts_of(completed_of(told["checkpoints_again"]))
    assert (first["found"], first["begin"]) == ([], 0)
    assert (second["found"], second["begin"]) == (["0000.txt", "0001.txt", "0002.txt"], 3)


def test_the_rule_hardware_utilization_is_in_no_sdk(told):
    assert told["profiler_rules"]["error"].endswith("has no attribute 'HardwareUtilization'")


def test_the_rule_hardware_utilization_by_its_name_is_evaluated_as_two_rules_and_the_job_says_so(told):
    log = completed_of(told["profiler_rules_by_name"])
    assert any("understood as OverallSystemUsage and LowGPUUtilization" in line for line in log)
    rules = told["profiler_rules_by_name"]["job"]["ProfilerRuleEvaluationStatuses"]
    statuses = {rule["RuleConfigurationName"]: rule["RuleEvaluationStatus"] for rule in rules}
    assert statuses["HardwareUtilization"] == "NoIssuesFound"
    assert statuses["ProfilerReport"] in ("NoIssuesFound", "IssuesFound")
