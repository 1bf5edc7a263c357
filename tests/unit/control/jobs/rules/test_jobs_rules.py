"""Tensors and rules of a request, the facts about rules, and the consequences of a finding."""

from dataclasses import replace

import pytest
from job_script import Script, at, exit_of, new_job

from clary.base.errors import WireError
from clary.base.plain import from_plain, to_plain
from clary.contract.agent_protocol import HostPhase, OrderKind
from clary.contract.job_rules import MirrorPlan, RuleFacts, RulePlan
from clary.contract.statuses import RuleStatus, SecondaryStatus, TrainingJobStatus
from clary.control.analysis.timeline import timeline
from clary.control.jobs import events, transitions
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.rules import debug_request
from clary.control.jobs.rules.rule_actions import Action, actions_of, newly_found, notice_of, stops
from clary.control.jobs.rules.rule_evaluations import RuleEvaluation, RuleKind, rows_of
from clary.control.jobs.training_job import EndCause, TrainingJob

STOP = r"[{\"training_job_prefix\": \"%s\", \"name\": \"stoptraining\"}]"
XGBOOST = "246618743249.dkr.ecr.us-west-2.amazonaws.com/sagemaker-xgboost:1.7-1"
MAILS = r"[{\"endpoint\": \"a@b.org\", \"name\": \"email\"}, {\"endpoint\": \"+4912\", \"name\": \"sms\"}]"


def rule(name="Loss", **parameters):
    return {"RuleConfigurationName": name, "RuleEvaluatorImage": "i", "RuleParameters": parameters}


def request_with(*rules, hook=None, **members):
    return {"DebugRuleConfigurations": list(rules), "DebugHookConfig": hook, **members}


def hook(**members):
    return {"S3OutputPath": "s3://b/t/", **members}


def collection(name="weights", **parameters):
    return {"CollectionName": name, "CollectionParameters": parameters}


def running(*rules):
    script = Script(hosts=("algo-1",))
    script.job = replace(script.job, request=request_with(*rules))
    return script.run()


def told(script, *facts, phase=HostPhase.RUNNING, **others):
    return script.report("algo-1", phase, rules=facts, **others)


def found(name="Loss", details="step 3: bad"):
    return RuleFacts(name=name, status=RuleStatus.ISSUES_FOUND, details=details)


def statuses(job):
    return [(row["RuleConfigurationName"], row["RuleEvaluationStatus"]) for row in rows_of(job, RuleKind.DEBUG)]


TAKEN = (
    *("/", "/opt", "/opt/ml", "/opt/ml/", "/usr/share", "/proc", "/opt/ml/input/data/train", "/opt/ml/input"),
    *("//proc", "//etc", "//opt/ml", "//opt/ml/input", "///opt//ml/.clary", "/./etc/x", "/run/x", "/etc/x", "/usr/x"),
)
REFUSALS = [
    (request_with(hook=hook(S3OutputPath="https://b/t")), "DebugHookConfig.S3OutputPath must be s3://bucket/prefix"),
    (request_with(hook=hook(LocalPath="tensors")), "DebugHookConfig.LocalPath 'tensors' cannot be used: it must be an"),
    (request_with(hook=hook(LocalPath="/opt/ml/../x")), "LocalPath must be the whole path of a folder"),
    (request_with(hook=hook(LocalPath="/data/\0x")), "LocalPath must be the whole path of a folder"),
    *((request_with(hook=hook(LocalPath=path)), f"DebugHookConfig.LocalPath {path!r} cannot") for path in TAKEN),
    (request_with(TensorBoardOutputConfig=hook(LocalPath="//etc")), "TensorBoardOutputConfig.LocalPath '//etc' cannot"),
    (request_with(hook=hook(HookParameters={"save_intervall": "5"})), "HookParameters has 'save_intervall'; it may"),
    (request_with(hook=hook(HookParameters={"include_workers": "two"})), "expected 'one' or 'all'"),
    (request_with(hook=hook(CollectionConfigurations=[{}])), "CollectionConfigurations[0] has no CollectionName"),
    (
        request_with(hook=hook(CollectionConfigurations=[collection(save_interval="often")])),
        "collection 'weights' has save_interval='often'; expected a whole number",
    ),
    (
        request_with(hook=hook(CollectionConfigurations=[collection(**{"train.save_interval": "0"})])),
        "collection 'weights' has train.save_interval='0'; expected 1 or more",
    ),
    (
        request_with(hook=hook(CollectionConfigurations=[collection(save_steps="1,x")])),
        "has save_steps='1,x'; expected whole numbers with commas",
    ),
    (request_with(rule("a"), rule("a")), "Rule configuration names must be unique; 'a' occurs twice"),
    (request_with(rule(source_s3_uri="rules.py")), "Rule 'Loss': source_s3_uri must be s3://bucket/file.py"),
    (request_with(rule(action_json="[{")), "Rule 'Loss': action_json is not valid JSON"),
    (request_with(rule(action_json="[3]")), "Rule 'Loss': an action has no name"),
    (request_with(rule(action_json='{"name": "call"}')), "Rule 'Loss' has an action 'call'; expected stoptraining"),
    (
        {"TensorBoardOutputConfig": {"S3OutputPath": "file:///x"}},
        "TensorBoardOutputConfig.S3OutputPath must be s3://bucket/prefix",
    ),
]


@pytest.mark.parametrize(("request_", "words"), REFUSALS, ids=[words[-40:] for _, words in REFUSALS])
def test_configurations_without_meaning_for_hooks_and_rules_are_refused(request_, words):
    with pytest.raises(WireError) as caught:
        debug_request.check(request_)
    assert caught.value.code == "ValidationException"
    assert words in caught.value.message


def test_requests_of_the_sdks_are_accepted():
    parameters = {"save_interval": "5", "eval.save_steps": "1,2", "reductions": "mean", "include_regex": ".*relu"}
    debug_request.check(
        request_with(
            rule(rule_to_invoke="VanishingGradient", threshold="1e-7", action_json=STOP % "job"),
            hook=hook(LocalPath="/opt/ml/output/tensors", CollectionConfigurations=[collection(**parameters)]),
        )
    )
    debug_request.check(request_with(hook=hook(CollectionConfigurations=[])))
    debug_request.check({})


def test_parameters_select_the_rule_and_others_are_passed_to_it():
    parameters = {
        "rule_to_invoke": "Mine",
        "source_s3_uri": "s3://b/r.py",
        "other_trial_1": "s3://b/two",
        "other_trial_0": "s3://b/one",
        "action_json": STOP % "job",
        "threshold": "3",
    }
    assert debug_request.rule_plans(request_with(rule(**parameters))) == (
        RulePlan(
            name="Loss",
            rule="Mine",
            source_uri="s3://b/r.py",
            other_trials=("s3://b/one", "s3://b/two"),
            parameters={"threshold": "3"},
        ),
    )


def test_tensors_and_tensorboard_are_mirrored_to_folders_of_the_job():
    request = request_with(
        hook=hook(), TensorBoardOutputConfig={"S3OutputPath": "s3://b/tb", "LocalPath": "/opt/ml/output/events"}
    )
    documents = JobRequest(request).config_documents
    assert debug_request.mirror_plans(request, documents, job_name="job") == (
        MirrorPlan(
            what="tensors",
            local_path="/opt/ml/output/tensors",
            s3_uri="s3://b/t/job/debug-output/",
            marks_end=True,
        ),
        MirrorPlan(
            what="TensorBoard events",
            local_path="/opt/ml/output/events",
            s3_uri="s3://b/tb/job/tensorboard-output/",
        ),
    )
    assert debug_request.mirror_plans({}, {}, job_name="job") == ()


def test_actions_are_read_with_and_without_backslashes_one_or_several():
    assert actions_of({"action_json": STOP % "job"}) == (Action(name="stoptraining", job_prefix="job"),)
    assert actions_of({"action_json": '{"name": "StopTraining"}'}) == (Action(name="stoptraining"),)
    assert [action.name for action in actions_of({"action_json": MAILS})] == ["email", "sms"]
    assert actions_of({}) == ()
    stalled = {"rule_to_invoke": "StalledTrainingRule", "stop_training_on_fire": "True"}
    assert actions_of(stalled) == (Action(name="stoptraining"),)


def test_a_rule_stops_its_own_job_alone():
    assert stops({"action_json": STOP % "job"}, "job-1")
    assert stops({"action_json": STOP % ""}, "job-1")
    assert not stops({"action_json": STOP % "other"}, "job-1")
    assert not stops({"action_json": MAILS}, "job-1")
    request = request_with(rule(action_json=STOP % "other"))
    assert debug_request.warnings(request, job_name="job", num_hosts=1) == [
        "rule Loss: its action stops jobs of another name, and a rule stops its own job alone"
    ]


@pytest.mark.parametrize(
    ("rules", "collections", "members", "is_told"),
    [
        ([rule()], [], {}, True),
        ([], [collection("metrics")], {}, True),
        ([], [], {}, False),  # the hook that SDK v2 sends with every estimator
        ([rule()], [], {"HyperParameters": {"sagemaker_program": "train.py"}}, False),
        ([rule()], [], {"Environment": {"SAGEMAKER_PROGRAM": "train.py"}}, False),
        ([rule()], [], {"AlgorithmSpecification": {"TrainingImage": "pytorch-training:2.8"}}, False),
        ([rule()], [], {"AlgorithmSpecification": {"TrainingImage": XGBOOST, "ContainerEntrypoint": ["x"]}}, False),
    ],
)
def test_a_debugger_for_the_built_in_xgboost_which_saves_no_tensors_is_told(rules, collections, members, is_told):
    built_in = {"AlgorithmSpecification": {"TrainingImage": XGBOOST}} | members
    request = request_with(*rules, hook=hook(CollectionConfigurations=collections), **built_in)
    told = debug_request.warnings(request, job_name="job", num_hosts=1)
    assert [sentence.startswith("the built-in algorithm XGBoost saves no tensors") for sentence in told] == [
        True
    ] * is_told


def test_actions_that_cannot_be_sent_get_one_warning_a_rule():
    found_ = debug_request.warnings(request_with(rule(action_json=MAILS)), job_name="job", num_hosts=1)
    assert len(found_) == 1
    assert found_[0].startswith("rule Loss: email and sms cannot be sent from here")
    several = debug_request.warnings(request_with(rule()), job_name="job", num_hosts=2)
    assert several[0].startswith("debugger rules see what is saved, and include_workers=one")
    saving_all = request_with(rule()) | {"DebugHookConfig": {"HookParameters": {"include_workers": "all"}}}
    assert debug_request.warnings(saving_all, job_name="job", num_hosts=2) == []
    alone = debug_request.warnings(saving_all | {"EnableNetworkIsolation": True}, job_name="job", num_hosts=2)
    assert alone[0].startswith("debugger rules run on the first host and see what is saved there alone")


def test_rules_are_in_progress_until_a_report_arrives():
    script = running(rule("a"), rule("b"))
    assert statuses(script.job) == [("a", "InProgress"), ("b", "InProgress")]
    told(script, RuleFacts(name="a", status=RuleStatus.NO_ISSUES_FOUND, details="all well"))
    row = rows_of(script.job, RuleKind.DEBUG)[0]
    assert row["RuleEvaluationStatus"] == "NoIssuesFound"
    assert row["StatusDetails"] == "all well"
    assert row["LastModifiedTime"] == at(script.seconds)
    assert rows_of(script.job, RuleKind.PROFILER) == []


def test_reports_on_unknown_rules_are_ignored():
    script = running(rule("a"))
    told(script, found("stranger"))
    assert script.job.rule_evaluations == ()


def test_a_finding_stays_and_a_repeated_report_keeps_its_time():
    script = running(rule())
    told(script, found())
    first = rows_of(script.job, RuleKind.DEBUG)
    told(script, found(), notes=("something else",))
    told(script, RuleFacts(name="Loss", status=RuleStatus.STOPPED))
    assert rows_of(script.job, RuleKind.DEBUG) == first


def test_details_are_cut_to_the_length_of_the_api():
    script = running(rule())
    told(script, found(details="x" * 5000))
    assert rows_of(script.job, RuleKind.DEBUG)[0]["StatusDetails"] == "x" * 1024


def test_rules_without_a_final_report_are_stopped_at_the_end_of_the_job():
    script = running(rule("a"), rule("b"))
    told(script, RuleFacts(name="b", status=RuleStatus.IN_PROGRESS))
    script.report("algo-1", HostPhase.LOST)
    script.send(events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=0))
    script.send(events.HostLost(host="algo-1", why="gone"))
    assert script.job.is_terminal
    assert statuses(script.job) == [("a", "Stopped"), ("b", "Stopped")]


def test_a_profiler_rule_in_progress_keeps_its_time_and_details_after_the_end_of_the_job():
    known = RuleEvaluation(
        kind=RuleKind.PROFILER, name="a", status=RuleStatus.IN_PROGRESS, details="so far", changed_at=at(3600)
    )
    job = new_job(rule_evaluations=(known,))
    job = replace(
        job,
        request={"ProfilerRuleConfigurations": [rule("a")]},
        status=TrainingJobStatus.COMPLETED,
        secondary_status=SecondaryStatus.COMPLETED,
        modified_at=at(7200),
    )
    (row,) = rows_of(job, RuleKind.PROFILER)
    assert (row["RuleEvaluationStatus"], row["StatusDetails"]) == ("InProgress", "so far")
    assert row["LastModifiedTime"] == at(3600)


def test_each_rule_has_an_arn_that_the_api_allows():
    names = ["a", "A", "loss not decreasing", "x" * 256, "-", "\u00e4"]
    job = new_job()
    job = replace(
        job,
        name="j" * 63,
        arn="arn:aws:sagemaker:us-west-2:000000000000:training-job/" + "j" * 63,
        request=request_with(*[rule(name) for name in names]),
    )
    arns = [row["RuleEvaluationJobArn"] for row in rows_of(job, RuleKind.DEBUG)]
    assert len(set(arns)) == len(names)
    for arn in arns:
        head, _, last = arn.partition(":processing-job/")
        assert head == "arn:aws:sagemaker:us-west-2:000000000000"
        assert len(last) <= 63
        assert last.replace("-", "").isalnum()


def test_an_action_stops_the_job_with_the_finding_as_its_reason():
    script = running(rule(action_json=STOP % "job"))
    told(script, found())
    assert script.job.status is TrainingJobStatus.STOPPING
    assert script.order("algo-1") is OrderKind.STOP
    why = "rule Loss found an issue and its action is to stop the training: step 3: bad"
    assert script.job.transitions[-1].message == f"Stopping the training job: {why}"
    script.report("algo-1", HostPhase.EXITED).report("algo-1", HostPhase.DONE)
    assert script.job.status is TrainingJobStatus.STOPPED
    assert script.job.secondary_status is SecondaryStatus.STOPPED
    assert script.job.transitions[-1].message == f"Training job stopped: {why}"
    assert script.job.failure is None
    assert any("rule Loss found an issue: step 3: bad" in row.what for row in timeline(script.job))


def test_a_finding_without_an_action_changes_nothing_else():
    script = running(rule(action_json=MAILS))
    told(script, found())
    assert script.job.status is TrainingJobStatus.IN_PROGRESS
    assert script.order("algo-1") is OrderKind.RUN


def test_a_finding_after_the_end_is_kept_and_does_not_change_the_end():
    script = running(rule(action_json=STOP % "job"))
    script.send(events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=0))
    script.report("algo-1", HostPhase.EXITED).report("algo-1", HostPhase.DONE)
    ended = script.job
    evaluation = RuleEvaluation(
        kind=RuleKind.DEBUG, name="Loss", status=RuleStatus.ISSUES_FOUND, details="late", changed_at=at(500)
    )
    job = transitions.apply(ended, events.RuleEvaluationChanged(evaluation=evaluation), now=at(500))
    assert job == replace(ended, rule_evaluations=(evaluation,))
    assert statuses(job) == [("Loss", "IssuesFound")]


def test_evaluations_of_both_kinds_with_one_name_stay_separate_in_the_store():
    script = running(rule("same"))
    script.job = replace(script.job, request={**script.job.request, "ProfilerRuleConfigurations": [rule("same")]})
    for kind, status in ((RuleKind.DEBUG, RuleStatus.ERROR), (RuleKind.PROFILER, RuleStatus.NO_ISSUES_FOUND)):
        evaluation = RuleEvaluation(kind=kind, name="same", status=status, changed_at=at(9))
        script.send(events.RuleEvaluationChanged(evaluation=evaluation))
    job = from_plain(TrainingJob, to_plain(script.job))
    assert job == script.job
    assert rows_of(job, RuleKind.DEBUG)[0]["RuleEvaluationStatus"] == "Error"
    assert rows_of(job, RuleKind.PROFILER)[0]["RuleEvaluationStatus"] == "NoIssuesFound"
    arns = {rows_of(job, kind)[0]["RuleEvaluationJobArn"] for kind in RuleKind}
    assert len(arns) == 2


def test_a_notice_reports_a_new_finding_once_without_the_request():
    before = running(rule()).job
    script = running(rule())
    told(script, found())
    (item,) = newly_found(before, script.job)
    assert newly_found(script.job, script.job) == ()
    notice = notice_of(script.job, item)
    assert notice["rule_configuration_name"] == "Loss"
    assert notice["status_details"] == "step 3: bad"
    assert "request" not in notice


def test_a_finding_after_the_end_of_the_program_stops_nothing():
    script = running(rule(action_json=STOP % "", rule_to_invoke="Loss"))
    job = told(script, found(), phase=HostPhase.EXITED, exits=(exit_of(0),)).job
    assert statuses(job) == [("Loss", "IssuesFound")]
    assert job.end_cause is EndCause.SUCCESS
    assert job.status is TrainingJobStatus.IN_PROGRESS
