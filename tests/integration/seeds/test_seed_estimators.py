"""Estimators of the listings, run by SDK v2; if the SDK refuses one, also the nearest form that it accepts."""

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
    """The outcome of every listing, by name."""
    require_python(SDK2_PYTHON)
    folder = tmp_path_factory.mktemp("estimators") / "run"
    return run_listings(service, SDK2_PYTHON, "estimator_client.py", folder, estimator_listings(digits))


@pytest.mark.parametrize("name", ["smddp_top_level", "smp_top_level_short", "pytorchx"])
def test_for_a_distribution_key_that_the_sdk_drops_the_log_names_the_right_form(told, name):
    log = completed_of(told[name])
    sent = [key for key in told[name]["hyperparameters"] if "distrib" in key or "parallel" in key or "mpi" in key]
    assert sent == [], "the SDK sends nothing of such a key, so nothing can be served"
    assert all("RANK" not in facts["variables"] for facts in facts_of(log))
    assert len(facts_of(log)) == 2
    (words,) = [line for line in log if "2 hosts and no distribution" in line]
    assert words.endswith(MEANT_BY_GUIDES)


def test_the_printed_smddp_listing_wraps_the_model_of_all_ranks(told):
    facts = facts_of(completed_of(told["smddp"]))
    assert [(one["world_size"], one["backend"], one["is_one_model"]) for one in facts] == [(2, "smddp", True)] * 2
    of_smddp = "smdistributed.dataparallel.torch.parallel.distributed.DistributedDataParallel"
    assert {one["wrapped_by"][0] for one in facts} == {of_smddp}


def test_top_level_ddp_fails_with_the_right_form_if_the_sdk_dropped_the_key(told):
    assert told["wraps_top_level"]["status"] == "Failed"
    assert f"Start it with distribution={RIGHT_SMDDP}" in told["wraps_top_level"]["reason"]


def test_top_level_ddp_with_key_smdistributed_joins_the_ranks_and_logs_it(told):
    log = completed_of(told["wraps_as_meant"])
    facts = facts_of(log)
    assert [(one["world_size"], one["backend"], one["is_one_model"]) for one in facts] == [(2, "smddp", True)] * 2
    (said,) = [line for line in log if NOTICE in line]
    assert "after init_process_group('smddp'), which the program has not called" in said


def test_the_torch_distributed_key_gives_each_process_its_rank(told):
    facts = facts_of(completed_of(told["torchrun"]))
    assert sorted((one["variables"]["RANK"], one["variables"]["WORLD_SIZE"]) for one in facts) == [
        ("0", "2"),
        ("1", "2"),
    ]


def test_the_printed_train_py_learns_digits_on_two_ranks(told):
    facts = facts_of(completed_of(told["digits"]))
    assert len({one["weight"] for one in facts}) == 1, "both ranks have one model"
    assert [one["num_held_out"] for one in facts] == [150, 150]
    assert facts[0]["accuracy"] > 0.75


def test_the_printed_smp_listing_with_a_c_comment_is_a_syntax_error(told):
    assert told["smp_top_level"]["error"].startswith("SyntaxError: invalid syntax")


def test_the_sdk_drops_smps_top_level_key_and_the_log_names_the_right_form(told):
    log = completed_of(told["smp_top_level_in_python"])
    assert "mp_parameters" not in told["smp_top_level_in_python"]["hyperparameters"]
    assert any(MEANT_BY_GUIDES in line for line in log)


def test_the_printed_smp_listing_without_mpi_fails_with_the_key_to_add(told):
    assert told["smp"]["status"] == "Failed"
    assert "start a multiple of 8 processes" in told["smp"]["reason"]
    assert any("add 'mpi': {'enabled': True, ...} to distribution" in line for line in told["smp"]["log"])


def test_smp_with_mpi_runs_the_printed_step_over_eight_partitions(told):
    facts = facts_of(completed_of(told["smp_and_mpi"]))
    assert sorted(one["stage"] for one in facts) == list(range(8))
    assert all(one["loss"] == pytest.approx(one["expected"], rel=1e-5) for one in facts)
    assert all(0 < one["num_parameters"] < 18 for one in facts), "each rank holds a part of the model"


def test_the_sdk_has_no_horovod_estimator(told):
    assert told["horovod"]["error"] == "ModuleNotFoundError: No module named 'sagemaker.horovod'"


def test_horovod_under_mpi_of_the_pytorch_estimator_sums_over_all_ranks(told):
    facts = facts_of(completed_of(told["horovod_by_mpi"]))
    assert sorted((one["rank"], one["of_mpi"], one["size"], one["sum"]) for one in facts) == [
        (0, 0, 2, 3.0),
        (1, 1, 2, 3.0),
    ]


def test_a_disabled_pytorchxla_is_refused_by_the_sdk_too(told):
    assert "PyTorch XLA is currently only supported when SageMaker Training Compiler" in told["xla_off"]["error"]


def test_a_dict_as_compiler_config_is_refused_by_the_sdk(told):
    assert "Instead got <class 'dict'>" in told["compiler"]["error"]


def test_the_compiler_by_its_class_is_accepted_for_its_last_supported_version(told):
    completed_of(told["compiler_by_its_class"])
    sent = told["compiler_by_its_class"]["hyperparameters"]
    assert sent["sagemaker_training_compiler_enabled"] == "true"
    assert sent["sagemaker_training_compiler_debug_mode"] == "false"


def test_the_printed_spot_listing_sends_both_limits(told):
    completed_of(told["spot"])
    job = told["spot"]["job"]
    assert job["EnableManagedSpotTraining"] is True
    assert job["StoppingCondition"] == {"MaxRuntimeInSeconds": 1800, "MaxWaitTimeInSeconds": 3600}
    assert 0 < job["BillableTimeInSeconds"] <= job["TrainingTimeInSeconds"]


def test_the_printed_amp_listing_enables_the_programs_autocast(told):
    (facts,) = facts_of(completed_of(told["amp"]))
    assert (facts["amp"], facts["dtypes"]) == (True, ["torch.bfloat16"])  # replaces float16 on CPUs
    assert facts["losses"][-1] < facts["losses"][0] / 10


def test_checkpoints_of_the_printed_listing_are_restored_in_the_next_job(told):
    (first,) = facts_of(completed_of(told["checkpoints"]))
    (second,) = facts_of(completed_of(told["checkpoints_again"]))
    assert (first["found"], first["begin"]) == ([], 0)
    assert (second["found"], second["begin"]) == (["0000.txt", "0001.txt", "0002.txt"], 3)


def test_the_sdk_has_no_rule_hardware_utilization(told):
    assert told["profiler_rules"]["error"].endswith("has no attribute 'HardwareUtilization'")


def test_the_rule_hardware_utilization_by_name_is_evaluated_as_two_logged_rules(told):
    log = completed_of(told["profiler_rules_by_name"])
    assert any("understood as OverallSystemUsage and LowGPUUtilization" in line for line in log)
    rules = told["profiler_rules_by_name"]["job"]["ProfilerRuleEvaluationStatuses"]
    statuses = {rule["RuleConfigurationName"]: rule["RuleEvaluationStatus"] for rule in rules}
    assert statuses["HardwareUtilization"] == "NoIssuesFound"
    assert statuses["ProfilerReport"] in ("NoIssuesFound", "IssuesFound")
