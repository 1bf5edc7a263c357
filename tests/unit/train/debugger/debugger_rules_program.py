"""Every built-in rule: it fires on a training with its problem, and is silent on three good trainings."""

import functools
import os
import re
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from clary.train import debugger
from clary.train.debugger.errors import (
    InsufficientInformationForRuleInvocation,
    NoMoreData,
    RuleEvaluationConditionMet,
    UnsupportedError,
)
from clary.train.debugger.hook import Hook
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.rule import Rule, invoke_rule
from clary.train.debugger.rules import RULES, UNSUPPORTED, make_rule
from clary.train.debugger.rules.stalled import StalledTrainingRule

torch.set_num_threads(1)
FOLDER = Path(os.environ["PROGRAM_FOLDER"])
BATCH = 64


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 16)
        self.relu = nn.ReLU()
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        return self.out(self.relu(self.fc(x)))


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 8), nn.Sigmoid(), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3)
        )

    def forward(self, x):
        return self.layers(x)


def two_classes():
    labels = torch.randint(0, 2, (BATCH,))
    return torch.randn(BATCH, 6) + 2.0 * (2 * labels - 1)[:, None], labels


def a_function():
    given = torch.rand(BATCH, 4) * 2 - 1
    return given, 3 * given[:, 0] - 2 * given[:, 1] + 2


def pictures():
    labels = torch.randint(0, 3, (BATCH,))
    given = torch.randn(BATCH, 1, 8, 8) * 0.5
    given[torch.arange(BATCH), 0, labels * 2] += 2.5
    return given, labels


def train(name, model, batches, loss, *, lr, steps=12, rounds=2, seed=7, optimizer=None, saved=(), every=1):
    """Train, save everything, and return the trial. Three validation steps follow each round of training."""
    torch.manual_seed(seed)
    at = FOLDER / name
    hook = Hook(at, strict=True, save_all=True, save_config=debugger.SaveConfig(save_interval=every))
    model = model()
    for change in saved:
        change(model)
    hook.register_module(model)
    stepper = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.5))
    stepper = stepper([one for one in model.parameters() if one.requires_grad])
    for round_ in range(rounds):
        hook.set_mode(ModeKeys.TRAIN)
        for _ in range(steps):
            given, labels = batches()
            stepper.zero_grad()
            loss(model(given), labels).backward()
            stepper.step()
        hook.set_mode(ModeKeys.EVAL)
        with torch.no_grad():
            for _ in range(3):
                given, labels = batches()
                scores = model(given)
                loss(scores, labels)
                if round_ == rounds - 1 and not labels.is_floating_point():
                    hook.save_tensor("labels", labels, "labels")
                    hook.save_tensor("predictions", scores, "predictions")
    hook.close()
    return debugger.create_trial(at)


def cross_entropy(*given):
    return F.cross_entropy(*given)  # looked up at the call, because the hook has replaced it


def mse(*given):
    return F.mse_loss(*given)


@functools.cache
def good(twin=""):
    return [
        train(f"classifier{twin}", Classifier, two_classes, cross_entropy, lr=0.05),
        train(f"regression{twin}", Regression, a_function, mse, lr=0, optimizer=lambda p: torch.optim.Adam(p, 0.03)),
        train(
            f"pictures{twin}",
            Convolutions,
            pictures,
            cross_entropy,
            lr=0,
            optimizer=lambda p: torch.optim.Adam(p, 0.008),
        ),
    ]


def bad(name, *changes, lr=0.05, **options):
    options = {"model": Classifier, "batches": two_classes, "loss": cross_entropy, "rounds": 1} | options
    return train(name, lr=lr, saved=changes, **options)


def findings(rule):
    found = []
    while True:
        try:
            invoke_rule(rule, start_step=found[-1].step + 1 if found else 0, raise_eval_cond=True)
        except NoMoreData:
            return found
        except RuleEvaluationConditionMet as met:
            if met.end_of_rule:
                return [*found, met.finding]
            found.append(met.finding)


def check(name, trial, *words, silent=None, **parameters):
    """Assert that the rule fires on this trial with these words, and on no good trial."""
    found = findings(make_rule(name, trial, parameters))
    assert found, f"{name} has found nothing"
    assert all(word in found[0].text for word in words), found[0].text
    for number, well in enumerate(good()):
        one = {**parameters, **(silent[number] if silent else {})}
        assert not (found := findings(make_rule(name, well, one))), f"{name} on {well.name}: {found[0]}"


def raised(kind, call, *given, **named):
    """Make a call that must raise, and return its exception."""
    try:
        call(*given, **named)
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def scaled(factor):
    def change(model):
        with torch.no_grad():
            for one in model.parameters():
                one.mul_(factor)

    return change


def test_all_zero():
    def zero(model):
        with torch.no_grad():
            model.out.weight.zero_()

    check("AllZero", bad("zero", zero), "100 % of", "are 0")
    assert findings(make_rule("AllZero", good()[0], {"threshold": "20"}))  # ReLUs pass about half of the values


def test_class_imbalance():
    def rare():
        given, labels = two_classes()
        labels[1:] = 0
        labels[0] = 1
        return given, labels

    check("ClassImbalance", bad("rare", batches=rare), "class 0 has", "times as many", "limit is 10")

    def mistaken():
        given, labels = two_classes()
        return given, torch.where(torch.rand(BATCH) < 0.2, 1 - labels * 0, labels * 0)

    trial = bad("mistaken", batches=mistaken, steps=20)
    check("ClassImbalance", trial, "of class 1 were predicted wrong, the limit is 70 %")


class FakeTrial:
    """A trial of arrays by step and name."""

    name = "fake"

    def __init__(self, saved):
        self._saved = saved

    def steps(self):
        return sorted(self._saved)

    def tensor_names(self, *, step, regex):
        expressions = [regex] if isinstance(regex, str) else regex
        return [name for name in self._saved[step] if any(re.search(one, name) for one in expressions)]

    def tensor(self, name):
        class FakeTensor:
            value = staticmethod(lambda step: self._saved[step][name])
            shape = staticmethod(lambda step: self._saved[step][name].shape)

        return FakeTensor


def test_class_imbalance_uses_tensors_named_labels_before_the_inputs_of_the_loss():
    even, rare = np.arange(1000) % 2, np.arange(1000) // 999
    others = {"Net_labels.weight": np.zeros(4)}

    def found(tensors, **parameters):
        return make_rule("ClassImbalance", FakeTrial({0: {**others, **tensors}}), parameters).invoke_at_step(0)

    assert "999 samples" in found({"CrossEntropyLoss_input_1": even, "labels": rare}).text
    assert found({"CrossEntropyLoss_input_1": rare, "batch/labels": even}) is None
    assert "999 samples" in found({"CrossEntropyLoss_input_1": rare}).text
    assert found({"CrossEntropyLoss_input_1": rare}, labels_regex="other") is None
    assert found({"CrossEntropyLoss_input_1": rare, "mine": even}, labels_regex="mine") is None


def test_confusion():
    def turned():
        given, labels = two_classes()
        return given, labels if torch.is_grad_enabled() else 1 - labels

    check("Confusion", bad("turned", batches=turned), "of class", "predicted right; expected 0.9")
    check("Confusion", bad("turned more", batches=turned), "taken for", min_diag="0")


def test_dead_relu():
    def kill(model):
        with torch.no_grad():
            model.fc.bias.fill_(-100)

    check("DeadRelu", bad("dead", kill), "100 % of relu_output_0 are dead, the limit is 50 %")


def test_exploding_tensor():
    check("ExplodingTensor", bad("exploding", lr=1e20), "has values that are")


def test_exploding_tensor_is_found_in_reductions_too():
    at = FOLDER / "reduced"
    config = debugger.ReductionConfig(abs_reductions=["max"])
    hook = Hook(at, strict=True, include_collections=["weights"], reduction_config=config)
    model = Classifier()
    hook.register_module(model)
    with torch.no_grad():
        model.out.weight[0, 0] = float("inf")
    model(torch.zeros(1, 6))
    hook.close()
    found = findings(make_rule("ExplodingTensor", debugger.create_trial(at)))
    assert "Classifier_out.weight has values that are infinite" in found[0].text
    assert not findings(make_rule("ExplodingTensor", debugger.create_trial(at), {"only_nan": "True"}))


def test_loss_not_decreasing():
    always = two_classes()
    trial = bad("standing", lr=0.0, batches=lambda: always)
    check("LossNotDecreasing", trial, "CrossEntropyLoss_output_0 was", ": 0 % less, expected 0.1 %")
    check("LossNotDecreasing", bad("rising", loss=lambda *given: -cross_entropy(*given)), "% less")
    assert not findings(make_rule("LossNotDecreasing", trial, {"mode": "EVAL"}))


def test_check_input_images():
    def bright():
        given, labels = pictures()
        return given + 1.0, labels

    inputs = {"regex": "^(fc|layers.0)_input_0$", "threshold_samples": "300"}
    trial = bad("bright", model=Convolutions, batches=bright)
    # Numbers in place of pixels may deviate more: there are fewer of them.
    check(
        "CheckInputImages",
        trial,
        "channel 0 of layers.0_input_0",
        "images",
        silent=[{"threshold_mean": "0.5"}] * 3,
        **inputs,
    )
    assert not findings(make_rule("CheckInputImages", trial, {**inputs, "threshold_samples": "100000"}))


def test_nlp_sequence_ratio():
    class Sentences(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(10, 6)
            self.out = nn.Linear(6, 2)

        def forward(self, x):
            return self.out(self.embedding(x).mean(1))

    def words():
        return torch.randint(1, 10, (BATCH, 8)), torch.randint(0, 2, (BATCH,))

    def padded():
        given, labels = words()
        given[:, 3:] = 0
        return given, labels

    looked_at = {"tensor_regex": ".*embedding_input_0"}
    trial = bad("padded", model=Sentences, batches=padded)
    check("NLPSequenceRatio", trial, "62.5 % of embedding_input_0 are 0; expected at most 50 %", **looked_at)
    several = {**looked_at, "token_values": "3, 0", "token_thresholds_percent": "50.0, 70.0"}
    assert not findings(make_rule("NLPSequenceRatio", trial, several))
    assert not findings(make_rule("NLPSequenceRatio", bad("words", model=Sentences, batches=words), looked_at))
    uneven = raised(ValueError, make_rule, "NLPSequenceRatio", trial, {"token_values": "1, 2"})
    assert "has 1 numbers; expected one for each of the 2 token_values" in str(uneven)


def test_overfit():
    given, labels = two_classes()[0][:8], torch.arange(8) % 2

    def few():
        return (given, labels) if torch.is_grad_enabled() else (torch.randn(8, 6), labels)

    trial = bad("overfit", batches=few, lr=0.5, steps=40)
    check("Overfit", trial, "in validation is", "the limit is 10 %")
    assert not findings(make_rule("Overfit", trial, {"ratio_threshold": "1e9"}))
    assert not findings(make_rule("Overfit", trial, {"patience": "3"}))


def test_overtraining():
    check("Overtraining", bad("overtraining", lr=0.5, steps=40), "saved steps of TRAIN, 5 are allowed")


def test_poor_weight_initialization():
    check("PoorWeightInitialization", bad("small", scaled(1e-4)), "does not go down, and nine tenths of")

    def uneven(model):
        with torch.no_grad():
            model.layers[0].weight.mul_(50)
            model.layers[2].weight.mul_(1e-4)
            model.layers[5].weight.mul_(1e-4)

    options = {"model": Convolutions, "batches": pictures, "lr": 1e-4}
    check("PoorWeightInitialization", bad("uneven", uneven, **options), "has a variance of", "more than 10 times")


def test_saturated_activation():
    options = {"model": Regression, "batches": a_function, "loss": mse, "lr": 1e-4}
    check("SaturatedActivation", bad("saturated", scaled(10000), **options), "are saturated, the limit is 50 %")


def test_similar_across_runs():
    twins = good("-twin")
    other = bad("another", seed=8)
    places = [{"other_trials": one} for one in twins]
    check(
        "SimilarAcrossRuns", other, "differs from classifier-twin by up to", silent=places, other_trials=twins[0].path
    )
    error = raised(InsufficientInformationForRuleInvocation, make_rule, "SimilarAcrossRuns", other)
    assert "other_trials names 0 trainings" in str(error)


def test_stalled_training():
    trial = bad("late", steps=2)
    trial.refresh()
    trial.written_at[1] += 2000
    check("StalledTrainingRule", trial, "s have passed since step 0, the limit is 1800 s")


def test_stalled_training_is_found_while_no_step_is_saved():
    at = FOLDER / "stalled"
    hook = Hook(at, strict=True, save_config=debugger.SaveConfig(save_interval=1))
    model = Classifier()
    hook.register_module(model)
    for _ in range(3):
        F.cross_entropy(model(torch.zeros(1, 6)), torch.zeros(1, dtype=torch.long))
    trial = debugger.create_trial(at)
    trial.wait_for_steps([1], limit_s=30)
    clock = [0.0]

    def sleep(seconds):
        clock[0] += seconds

    rule = StalledTrainingRule(trial, "600", monotonic=lambda: clock[0], sleep=sleep)
    met = raised(RuleEvaluationConditionMet, invoke_rule, rule, raise_eval_cond=True)
    hook.close()
    assert met.end_of_rule
    assert met.step == 2
    assert "nothing was saved for 600 s after [1]" in str(met)
    assert 600 < clock[0] < 700


def test_tensor_variance():
    limits = {"collection_names": "weights", "max_threshold": "10", "min_threshold": "0.0001"}
    check("TensorVariance", bad("wide", scaled(1000), steps=1), "has a variance of", "expected 0.0001 to 10", **limits)
    check("TensorVariance", bad("narrow", scaled(0.001), steps=1), "has a variance of", **limits)
    error = raised(InsufficientInformationForRuleInvocation, make_rule, "TensorVariance", good()[0])
    assert "give max_threshold or min_threshold" in str(error)


def test_unchanged_tensor():
    check("UnchangedTensor", bad("frozen", lambda model: model.fc.requires_grad_(False)), "Classifier_fc", "3 saved")


def test_vanishing_gradient():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*[part for _ in range(20) for part in (nn.Linear(6, 6), nn.Sigmoid())])

        def forward(self, x):
            return self.layers(x)[:, :2]

    check("VanishingGradient", bad("deep", model=Deep, steps=2), "mean of |gradient/Deep_layers.0", "below 1e-07")


def looked_at(trial, name, **parameters):
    """Return the number of steps that a rule evaluated, and the number of saved steps."""
    rule = make_rule(name, trial, parameters)
    raised(NoMoreData, invoke_rule, rule)
    return rule.report["Datapoints"], len(trial.steps(show_incomplete_steps=True))


def test_steps_without_the_tensors_of_a_rule_are_not_counted_as_evaluated():
    def saved(name, **parameters):
        at = FOLDER / name
        every = debugger.SaveConfig(save_interval=1)
        hook = Hook(at, strict=True, include_collections=["losses", "gradients"], save_config=every)
        hook.get_collection("gradients").save_config = debugger.SaveConfig(save_interval=10)
        model = Classifier()
        hook.register_module(model)
        for _ in range(30):
            given, labels = two_classes()
            F.cross_entropy(model(given), labels).backward()
        hook.close()
        return debugger.create_trial(at)

    trial = saved("seldom")
    assert looked_at(trial, "VanishingGradient", threshold="0") == (3, 30)
    assert looked_at(trial, "LossNotDecreasing", diff_percent="-1000") == (30, 30)
    assert looked_at(trial, "AllZero", threshold="101") == (30, 30)
    assert looked_at(trial, "AllZero", tensor_regex="gradient/.*bias", threshold="101") == (3, 30)
    assert looked_at(trial, "StalledTrainingRule") == (30, 30)
    assert looked_at(trial, "PoorWeightInitialization", steps="4") == (4, 30)
    for name in ("DeadRelu", "SaturatedActivation", "Overfit", "WeightUpdateRatio", "CheckInputImages"):
        assert looked_at(trial, name) == (0, 30), name
    for name in ("NLPSequenceRatio", "Confusion", "ClassImbalance"):
        assert looked_at(trial, name) == (0, 30), name


def test_weight_update_ratio():
    check("WeightUpdateRatio", bad("leaping", lr=1000.0, steps=4), "has changed by", "expected 1e-08 to 10")
    frozen = bad("frozen too", lambda model: model.fc.requires_grad_(False), steps=4)
    check("WeightUpdateRatio", frozen, "Classifier_fc.weight has changed by 0 of itself since step 0")


def test_every_rule_has_a_check():
    looked_at = re.findall(r'check\(\s*"(\w+)"', Path(__file__).read_text())
    assert set(looked_at) == set(RULES)


def test_a_custom_rule_is_invoked_as_by_smdebug():
    class Small(Rule):
        def __init__(self, base_trial, limit="0.5"):
            super().__init__(base_trial, other_trials=None)
            self.limit, self.seen = float(limit), []

        def set_required_tensors(self, step):
            self.req_tensors.add("CrossEntropyLoss_output_0", [step])

        def invoke_at_step(self, step):
            (tensor,) = self.req_tensors.get()
            self.seen.append(step)
            return bool(tensor.value(step) < self.limit)

    rule = Small(good()[0])
    met = raised(RuleEvaluationConditionMet, invoke_rule, rule, raise_eval_cond=True)
    assert (met.rule_name, met.finding) == ("Small", True)
    assert rule.seen == list(range(met.step + 1))
    invoke_rule(rule, start_step=0, end_step=3)
    assert rule.report["Datapoints"] >= 3


def test_an_unknown_rule_is_refused_with_the_known_rules():
    for name in (*UNSUPPORTED, "Nonsense"):
        error = raised(UnsupportedError, make_rule, name, good()[0])
        assert name in str(error)
        assert "VanishingGradient" in str(error)
    for parameters, words in (
        ({"treshold": "1"}, "VanishingGradient has no parameter 'treshold'; it has threshold"),
        ({"threshold": "much"}, "threshold is 'much'; expected a number"),
        ({"threshold": "nan"}, "expected 0 or more"),
    ):
        given = {"rule_to_invoke": "VanishingGradient", **parameters}
        assert words in str(raised(ValueError, make_rule, "VanishingGradient", good()[0], given))
