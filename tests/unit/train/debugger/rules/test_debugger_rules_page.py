"""The page of built-in rules describes every rule; parameters and defaults are AWS's."""

import sys
from typing import Any

import pytest
from torch_programs import ROOT

from clary.train.debugger.rules import RULES, parameters_of

# Source: AWS's "List of Debugger built-in rules", one page per rule. `None` also where AWS documents no default.
SELECTION = {"collection_names": None, "tensor_regex": None}
DEFAULTS: dict[str, dict[str, Any]] = {
    "AllZero": {**SELECTION, "threshold": 100},
    "CheckInputImages": {
        "threshold_mean": 0.2,
        "threshold_samples": 500,
        "regex": ".*hybridsequential0_input_0",
        "channel": 1,
    },
    "ClassImbalance": {
        "threshold_imbalance": 10,
        "threshold_misprediction": 0.7,
        "samples": 500,
        "argmax": False,
        "labels_regex": ".*labels",
        "predictions_regex": ".*predictions",
    },
    "Confusion": {
        "category_no": None,
        "labels": "labels",
        "predictions": "predictions",
        "labels_collection": "labels",
        "predictions_collection": "predictions",
        "min_diag": 0.9,
        "max_off_diag": 0.1,
    },
    "DeadRelu": {"tensor_regex": ".*relu_output", "threshold_inactivity": 1.0, "threshold_layer": 50.0},
    "ExplodingTensor": {**SELECTION, "only_nan": False},
    "LossNotDecreasing": {
        **SELECTION,
        "use_losses_collection": True,
        "num_steps": 10,
        "diff_percent": 0.1,
        "increase_threshold_percent": 5,
        "mode": "GLOBAL",
    },
    "NLPSequenceRatio": {
        "tensor_regex": ".*embedding0_input_0",
        "token_values": 0,
        "token_thresholds_percent": 50,
    },
    "Overfit": {"tensor_regex": None, "start_step": 0, "patience": 1, "ratio_threshold": 0.1},
    "Overtraining": {"patience_train": 5, "patience_validation": 10, "delta": 0.01},
    "PoorWeightInitialization": {
        "activation_inputs_regex": ".*relu_input",
        "threshold": 10.0,
        "distribution_range": 0.001,
        "patience": 5,
        "steps": 10,
    },
    "SaturatedActivation": {
        "collection_names": None,
        "tensor_regex": ".*tanh_input|.*sigmoid_input",
        "threshold_tanh_min": -9.4999,
        "threshold_tanh_max": 9.4999,
        "threshold_sigmoid_min": -23,
        "threshold_sigmoid_max": 16.99999,
        "threshold_inactivity": 1.0,
        "threshold_layer": 50.0,
    },
    "SimilarAcrossRuns": {"other_trials": None, **SELECTION},
    "StalledTrainingRule": {"threshold": 1800, "stop_training_on_fire": False, "training_job_name_prefix": None},
    "TensorVariance": {**SELECTION, "max_threshold": None, "min_threshold": None},
    "UnchangedTensor": {**SELECTION, "num_steps": 3, "rtol": 1e-05, "atol": 1e-08, "equal_nan": False},
    "VanishingGradient": {"threshold": 0.0000001},
    "WeightUpdateRatio": {
        "num_steps": None,
        "large_threshold": 10.0,
        "small_threshold": 0.00000001,
        "epsilon": 0.000000001,
    },
}


@pytest.mark.parametrize("name", sorted({*RULES, *DEFAULTS}))
def test_parameters_and_defaults_are_those_of_aws(name: str) -> None:
    found = {parameter.name: parameter.default for parameter in parameters_of(RULES[name]).values()}
    assert found == DEFAULTS[name]


def test_the_page_of_rules_matches_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "tools")])
    import make_rules_tables

    page = make_rules_tables.DEBUGGER_PAGE.read_text(encoding="utf-8")
    assert make_rules_tables.with_table(make_rules_tables.DEBUGGER_PAGE) == page, "run tools/make_rules_tables.py"
    assert all(f"| `{name}` |" in page for name in RULES)
