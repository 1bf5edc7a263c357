"""One rule of a job as its process evaluates it: a built-in rule or one of a user's file, including failing ones."""

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clary.train.debugger import evaluation
from clary.train.debugger.errors import NoMoreData, RuleEvaluationConditionMet
from clary.train.debugger.files import LocalFiles, step_file
from clary.train.debugger.modes import ModeKeys
from clary.train.debugger.reading.ends import mark_ended
from clary.train.debugger.reading.trial import Trial
from clary.train.debugger.rule import Finding, Rule, invoke_rule
from clary.train.debugger.tensor_files import StepIndex, TensorEntry, write_step

ROOT = Path(__file__).resolve().parents[4]
RULES = """
from clary.train.debugger import Finding, Rule

class AtStep(Rule):
    def __init__(self, base_trial, step="0"):
        super().__init__(base_trial)
        self.step = int(step)

    def invoke_at_step(self, step):
        if step == self.step:
            return Finding(text=f"step {step}: too much", step=step, tensor="weight", details={"value": 0.5})

class NotThere(Rule):
    def invoke_at_step(self, step):
        self.base_trial.tensor("nobody saved this").value(step)

class Compared(Rule):
    def __init__(self, base_trial, other_trials=None):
        super().__init__(base_trial, other_trials=other_trials)

    def invoke_at_step(self, step):
        return len(self.other_trials) == 2

class NoRule:
    def __init__(self, base_trial):
        pass
"""


def save(folder: Path, steps: list[int], *, at: float = 1.0) -> None:
    for step in steps:
        path = folder / "steps" / step_file(step, "worker_0")
        path.parent.mkdir(parents=True, exist_ok=True)
        index = StepIndex(
            step=step, mode=ModeKeys.GLOBAL, mode_step=step, written_at=at, worker="worker_0", num_workers=1
        )
        write_step(path, index, [(TensorEntry(name="weight", shape=(1,)), memoryview(struct.pack("<f", 1.0)))])


def order(folder: Path, rule: str, *, is_own: bool = True, **members: Any) -> dict[str, Any]:
    source = folder / "mine.py"
    source.write_text(RULES)
    return {
        "name": "a rule",
        "rule": rule,
        "source_file": str(source) if is_own else "",
        "parameters": {},
        "tensors_folder": str(folder / "tensors"),
        "other_trials": [],
        "status_file": str(folder / "status.json"),
    } | members


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A training of three steps that has ended."""
    save(tmp_path / "tensors", [0, 10, 20])
    mark_ended(tmp_path / "tensors")
    return tmp_path


def test_a_finding_ends_the_evaluation_with_all_its_details(saved: Path) -> None:
    told = evaluation.evaluate(order(saved, "AtStep", parameters={"step": "10"}))
    assert told == ("IssuesFound", "step 10: too much (tensor weight, value 0.5)")


def test_a_rule_without_a_finding_has_seen_every_step(saved: Path) -> None:
    told = evaluation.evaluate(order(saved, "AtStep", parameters={"step": "5"}))
    assert told == ("NoIssuesFound", "3 of 3 saved steps were looked at")


def test_a_rule_whose_tensors_were_never_saved_reports_it(saved: Path) -> None:
    status, details = evaluation.evaluate(order(saved, "NotThere"))
    assert status == "NoIssuesFound"
    assert details.startswith("0 of 3 saved steps were looked at: none had the rule's tensors")


def test_a_training_without_saved_steps_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tensors").mkdir()
    mark_ended(tmp_path / "tensors")
    status, details = evaluation.evaluate(order(tmp_path, "AtStep"))
    assert status == "Error"
    assert details.startswith(f"no step was saved in {tmp_path}/tensors")


def test_a_user_s_rule_gets_the_other_trials(saved: Path) -> None:
    others = [str(saved / "tensors")] * 2
    assert evaluation.evaluate(order(saved, "Compared", other_trials=others))[0] == "IssuesFound"


@pytest.mark.parametrize(
    ("rule", "is_own", "error", "words"),
    [
        ("", False, ValueError, "no rule_to_invoke"),
        ("Other", True, AttributeError, "mine.py has no Other; it has AtStep, NotThere, Compared, NoRule"),
        ("NoRule", True, TypeError, "NoRule is no rule"),
        ("Nonsense", False, Exception, "'Nonsense' does not exist"),
    ],
)
def test_an_error_in_a_rule_is_named(saved: Path, rule: str, is_own: bool, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        evaluation.evaluate(order(saved, rule, is_own=is_own))


def test_numbers_of_a_finding_are_short_and_not_repeated() -> None:
    finding = Finding(text="step 3: weight is 0", step=3, tensor="weight", details={"share": 1 / 3, "limit": None})
    met = RuleEvaluationConditionMet("Rule", 3, finding=finding)
    assert evaluation.in_words(met) == "step 3: weight is 0 (tensor weight, share 0.333333)"
    assert evaluation.in_words(RuleEvaluationConditionMet("Rule", 3, finding=True)) == "rule Rule has fired at step 3"


@pytest.mark.parametrize(
    ("rule", "code", "status"), [("AtStep", 0, "IssuesFound"), ("NoRule", 1, "Error"), ("Absent", 1, "Error")]
)
def test_the_process_writes_its_status_in_every_case(saved: Path, rule: str, code: int, status: str) -> None:
    file = saved / "order.json"
    file.write_text(json.dumps(order(saved, rule)))
    done = subprocess.run(
        [sys.executable, "-m", "clary.train.debugger.evaluation", str(file)],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert json.loads((saved / "status.json").read_text())["status"] == status
    assert ("Traceback" in done.stderr) == (code == 1)


def test_any_message_of_a_rule_fits_into_the_limit_of_the_agent(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation.os, "nice", lambda _: 0)  # for this process it would last until the end of all tests
    long = "\N{SNOWMAN}" * 100_000
    rules = f"class Loud:\n    def __init__(self, trial):\n        raise ValueError({long!r})\n"
    given = order(saved, "Loud")
    (saved / "mine.py").write_text(rules, encoding="utf-8")
    (saved / "order.json").write_text(json.dumps(given))
    assert evaluation.main([str(saved / "order.json")]) == 1
    status = (saved / "status.json").read_bytes()
    assert len(status) < 16 * 1024
    assert json.loads(status)["status"] == "Error"


class Following(Rule):
    """Sees the end of a program that another program follows."""

    def __init__(self, trial: Trial, folder: Path) -> None:
        super().__init__(trial)
        self.folder, self.seen = folder, list[int]()

    def invoke_at_step(self, step: int) -> None:
        """Record the step; at the third step, have the other program train and end."""
        self.seen.append(step)
        if len(self.seen) == 3:
            train(self.folder, [0, 10], began_at=10.0)
            mark_ended(self.folder)


def train(folder: Path, steps: list[int], *, began_at: float) -> None:
    """Write the files of a program that has ended; `began_at` decides which program is the later one."""
    for name in ("collections", "ended"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    save(folder, steps, at=began_at + 1)
    (folder / "collections" / "worker_0.json").write_text(
        json.dumps({"num_workers": 1, "collections": {}, "began_at": began_at})
    )
    (folder / "ended" / "worker_0.json").write_text(json.dumps({"ended_at": began_at + 2}))


def test_a_program_that_follows_another_is_evaluated_from_its_first_step(tmp_path: Path) -> None:
    train(tmp_path, [0, 10, 20], began_at=1.0)
    rule = Following(Trial(LocalFiles(tmp_path), name="both", ends_by_mark=True), tmp_path)
    with pytest.raises(NoMoreData):
        invoke_rule(rule)
    assert rule.seen == [0, 10, 20, 0, 10]
    assert rule.report["Datapoints"] == len(rule.base_trial.steps()) == 2
