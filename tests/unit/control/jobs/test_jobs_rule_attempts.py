"""Rules over saved tensors when an attempt ends and its job continues."""

from dataclasses import replace

import pytest
from job_script import MODEL_URI, Script, exit_of

from clary.base.errors import Fault
from clary.base.plain import from_plain, to_plain
from clary.contract.agent_protocol import Failure, HostPhase, OrderKind
from clary.contract.job_rules import RuleFacts
from clary.contract.statuses import RuleStatus, SecondaryStatus, TrainingJobStatus
from clary.control.jobs import events
from clary.control.jobs.rules.rule_evaluations import RuleKind, rows_of
from clary.control.jobs.training_job import AttemptEnd, EndCause, RestartRule, TrainingJob

RECLAIM = events.Reclaimed(reason="The spot capacity of algo-1 was reclaimed", grace_s=30.0)
STOPPED = (exit_of(None, signal=15, killed=True),)
STOP_ACTION = '{"name": "StopTraining"}'


def rule(name="Loss", **parameters):
    return {"RuleConfigurationName": name, "RuleEvaluatorImage": "i", "RuleParameters": parameters}


def facts(status, details="", name="Loss"):
    return RuleFacts(name=name, status=status, details=details)


def running(*rules, **changes):
    script = Script(**changes)
    script.job = replace(script.job, request={"DebugRuleConfigurations": list(rules or (rule(),))})
    return script.run()


def run_again(script):
    """Start another attempt, whose agents count their reports from 0."""
    script.numbers = dict.fromkeys(script.hosts, 0)
    return script.run()


def told(script, *rules, phase=HostPhase.RUNNING, **others):
    return script.report("algo-1", phase, rules=rules, **others)


def row(script):
    return rows_of(script.job, RuleKind.DEBUG)[0]


def status(script):
    return row(script)["RuleEvaluationStatus"]


def between_attempts(*rules, said=None):
    """Return a reclaimed job that waits for capacity; its rules ended with the facts `said`, or found no issues."""
    said = said or facts(RuleStatus.NO_ISSUES_FOUND, "12 of 12 saved steps were looked at")
    script = running(*rules).send(RECLAIM)
    told(script, said)
    told(script, said, phase=HostPhase.EXITED, exits=STOPPED)
    script.report("algo-2", HostPhase.EXITED, exits=STOPPED)
    return script.send(events.Released())


@pytest.mark.parametrize("last", [RuleStatus.NO_ISSUES_FOUND, RuleStatus.STOPPED])
def test_a_rule_result_of_an_ending_attempt_is_not_reported_for_the_job(last):
    script = running().send(RECLAIM)
    told(script, facts(last, "12 of 12 saved steps were looked at"))
    assert status(script) == "InProgress", "while the attempt ends"
    assert "StatusDetails" not in row(script)
    told(script, facts(last, "12 of 12 saved steps were looked at"), phase=HostPhase.EXITED, exits=STOPPED)
    script.report("algo-2", HostPhase.EXITED, exits=STOPPED).send(events.Released())
    assert status(script) == "InProgress", "while the job waits for hosts"
    run_again(script)
    assert status(script) == "InProgress", "before the second attempt has told anything"
    told(script, facts(RuleStatus.IN_PROGRESS))
    assert status(script) == "InProgress"
    told(script, facts(RuleStatus.NO_ISSUES_FOUND, "30 of 30"))
    assert (status(script), row(script)["StatusDetails"]) == ("NoIssuesFound", "30 of 30")


def test_a_job_that_ends_between_attempts_reports_the_last_rule_results():
    script = between_attempts().send(events.StopWanted(cause=EndCause.STOP_REQUESTED, grace_s=0))
    assert script.job.status is TrainingJobStatus.STOPPED
    assert (status(script), row(script)["StatusDetails"]) == ("NoIssuesFound", "12 of 12 saved steps were looked at")


def test_an_error_of_a_rule_is_shown_until_the_next_attempt_starts_the_rule_again():
    script = between_attempts(said=facts(RuleStatus.ERROR, "KeyError: 'x'"))
    assert status(script) == "Error"
    told(run_again(script), facts(RuleStatus.IN_PROGRESS))
    assert status(script) == "InProgress"


def test_a_finding_outlives_its_attempt_whatever_later_attempts_report():
    script = between_attempts(said=facts(RuleStatus.ISSUES_FOUND, "step 3: bad"))
    assert status(script) == "IssuesFound"
    run_again(script)
    told(script, facts(RuleStatus.IN_PROGRESS))
    told(script, facts(RuleStatus.NO_ISSUES_FOUND))
    assert (status(script), row(script)["StatusDetails"]) == ("IssuesFound", "step 3: bad")


def test_a_program_that_finished_before_the_reclaim_keeps_its_rule_results():
    script = running().report("algo-2", HostPhase.EXITED, exits=(exit_of(0),)).send(RECLAIM)
    seen = facts(RuleStatus.NO_ISSUES_FOUND, "all")
    told(script, seen, phase=HostPhase.EXITED, exits=(exit_of(0),))
    assert status(script) == "NoIssuesFound"
    script.report("algo-2", HostPhase.DONE, exits=(exit_of(0),))
    told(script, seen, phase=HostPhase.DONE, exits=(exit_of(0),), uploaded=(MODEL_URI,))
    assert script.job.status is TrainingJobStatus.COMPLETED
    assert status(script) == "NoIssuesFound"


def test_late_facts_of_a_recorded_attempt_change_nothing():
    script = between_attempts()
    before = script.job
    assert told(script, facts(RuleStatus.ISSUES_FOUND, "late")).job is before


def test_a_finding_at_the_end_of_an_attempt_stops_the_job_before_the_next_attempt():
    script = running(rule(action_json=STOP_ACTION)).send(RECLAIM).all(HostPhase.EXITED, exits=STOPPED)
    assert script.job.is_leaving
    told(script, facts(RuleStatus.ISSUES_FOUND, "step 3: bad"), phase=HostPhase.EXITED, exits=STOPPED)
    assert script.job.status is TrainingJobStatus.STOPPING
    assert {script.order(host) for host in script.hosts} == {OrderKind.RELEASE}
    script.all(HostPhase.RELEASED, exits=STOPPED).send(events.Released())
    assert script.job.status is TrainingJobStatus.STOPPED
    assert script.job.secondary_status is SecondaryStatus.STOPPED
    assert script.job.transitions[-1].message.endswith("its action is to stop the training: step 3: bad")
    assert (script.job.attempt, script.job.end_cause) == (1, EndCause.RULE)
    assert script.ask().job.attempt == 1, "no other attempt begins"


def test_a_finding_before_a_host_is_lost_stops_the_job_instead_of_a_restart():
    script = running(rule(action_json=STOP_ACTION), restart_rule=RestartRule(max_restarts=3))
    told(script, facts(RuleStatus.ISSUES_FOUND, "step 3: bad"))
    assert script.job.end_cause is EndCause.RULE
    script.send(events.HostLost(host="algo-2", why="algo-2 was lost: silent"))
    script.report("algo-1", HostPhase.EXITED, exits=STOPPED).report("algo-1", HostPhase.DONE, exits=STOPPED)
    assert script.job.status is TrainingJobStatus.STOPPED
    assert script.job.past_attempts == ()


def test_a_finding_after_the_program_has_finished_stops_nothing():
    script = running(rule(action_json=STOP_ACTION)).report("algo-2", HostPhase.EXITED, exits=(exit_of(0),))
    script.send(RECLAIM)
    told(script, facts(RuleStatus.ISSUES_FOUND, "late"), phase=HostPhase.EXITED, exits=(exit_of(0),))
    assert script.job.end_cause is EndCause.SUCCESS
    assert script.job.status is TrainingJobStatus.IN_PROGRESS


def test_only_the_last_past_attempt_keeps_the_plan_of_its_hosts():
    hosts = [
        {
            "name": name,
            "instance_type": "ml.m5.large",
            "processes_per_host": 1,
            "resources": {"num_cpus": 2.0, "gpu_indices": []},
            "address": "10.0.0.1",
        }
        for name in ("algo-1", "algo-2")
    ]
    script = running()
    for _ in range(2):
        script.job = replace(script.job, plan={**script.job.plan, "hosts": hosts})
        script.send(RECLAIM).all(HostPhase.EXITED, exits=STOPPED).send(events.Released())
        last = script.job.past_attempts[-1]
        assert last.kind is AttemptEnd.RECLAIMED
        assert last.planned_hosts == tuple({key: host[key] for key in host if key != "address"} for host in hosts)
        assert from_plain(TrainingJob, to_plain(script.job)) == script.job
        run_again(script)
    assert [bool(past.planned_hosts) for past in script.job.past_attempts] == [False, True]


def test_a_rule_result_of_a_retryable_failure_is_reported_once_the_retry_is_decided():
    script = running(restart_rule=RestartRule(max_restarts=1))
    seen = facts(RuleStatus.NO_ISSUES_FOUND, "all")
    failure = Failure(fault=Fault.INFRASTRUCTURE.value, message="the link is gone", retryable=True)
    told(script, seen, failure=failure, exits=(exit_of(1),))
    assert script.job.end_cause is EndCause.FAILURE
    assert status(script) == "InProgress"
    told(script, seen, phase=HostPhase.EXITED, failure=failure, exits=(exit_of(1),))
    script.report("algo-2", HostPhase.EXITED, exits=STOPPED)
    assert script.job.ending.kind is AttemptEnd.RESTARTED
    assert status(script) == "InProgress"
    last = running()  # no restart is allowed for this job
    failure = Failure(fault=Fault.ALGORITHM.value, message="a bug", exit_code=1)
    told(last, seen, phase=HostPhase.EXITED, failure=failure, exits=(exit_of(1),))
    last.report("algo-2", HostPhase.EXITED, exits=STOPPED)
    assert last.order("algo-2") is OrderKind.UPLOAD
    assert status(last) == "NoIssuesFound"
