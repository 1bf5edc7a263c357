"""Built-in rules over tensors, and the parameters that RuleParameters may have for each.

Where: the service warns of other parameters when a job is created; `train.debugger.rules` evaluates the rules next to
the program, and a test compares this list with that package.
Source: AWS's "List of Debugger built-in rules".
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

_CHOICE = ("collection_names", "tensor_regex")
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "AllZero": (*_CHOICE, "threshold"),
    "CheckInputImages": ("threshold_mean", "threshold_samples", "regex", "channel"),
    "ClassImbalance": (
        *("threshold_imbalance", "threshold_misprediction", "samples"),
        *("argmax", "labels_regex", "predictions_regex"),
    ),
    "Confusion": (
        *("category_no", "labels", "predictions", "labels_collection"),
        *("predictions_collection", "min_diag", "max_off_diag"),
    ),
    "DeadRelu": ("tensor_regex", "threshold_inactivity", "threshold_layer"),
    "ExplodingTensor": (*_CHOICE, "only_nan"),
    "LossNotDecreasing": (
        *_CHOICE,
        *("use_losses_collection", "num_steps", "diff_percent", "increase_threshold_percent", "mode"),
    ),
    "NLPSequenceRatio": ("tensor_regex", "token_values", "token_thresholds_percent"),
    "Overfit": ("tensor_regex", "start_step", "patience", "ratio_threshold"),
    "Overtraining": ("patience_train", "patience_validation", "delta"),
    "PoorWeightInitialization": (
        *("activation_inputs_regex", "threshold", "distribution_range"),
        *("patience", "steps"),
    ),
    "SaturatedActivation": (
        *_CHOICE,
        *("threshold_tanh_min", "threshold_tanh_max", "threshold_sigmoid_min", "threshold_sigmoid_max"),
        *("threshold_inactivity", "threshold_layer"),
    ),
    "SimilarAcrossRuns": ("other_trials", *_CHOICE),
    "StalledTrainingRule": ("threshold", "stop_training_on_fire", "training_job_name_prefix"),
    "TensorVariance": (*_CHOICE, "max_threshold", "min_threshold"),
    "UnchangedTensor": (*_CHOICE, "num_steps", "rtol", "atol", "equal_nan"),
    "VanishingGradient": ("threshold",),
    "WeightUpdateRatio": ("num_steps", "large_threshold", "small_threshold", "epsilon"),
}
NEARNESS = 0.7  # for difflib: allows a few wrong letters in a name


def rule_problem(rule: str, parameters: Mapping[str, str]) -> str:
    """Return why the evaluation of a built-in rule will end in Error, or an empty text.

    Args:
        rule: rule_to_invoke of RuleParameters; empty without rule_to_invoke.
        parameters: parameters of the rule itself.
    """
    if not rule:
        return "RuleParameters have no rule_to_invoke, which names the rule"
    known = PARAMETERS.get(rule)
    if known is None:
        return f"there is no rule {rule[:80]!r}{_nearest(rule, PARAMETERS)}"
    unknown = next((name for name in parameters if name not in known), None)
    if unknown is None:
        return ""
    return f"{rule} has no parameter {unknown[:80]!r}{_nearest(unknown, known)}; it has {', '.join(known)}"


def _nearest(name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    near = get_close_matches(name, list(known), n=1, cutoff=NEARNESS)
    return f" (did you mean {near[0]}?)" if near else ""
