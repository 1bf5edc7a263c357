"""Output of unusual shapes, from a real job to GetLogEvents and `clary logs`; retention through boto3."""

import pytest
from log_events import GROUP, events_of
from program_jobs import run_command

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("log-shapes")]

LONG_BYTES = 20_000_000
PROGRAM = (  # at most 256 characters in one line
    rf"head -c {LONG_BYTES} /dev/zero|tr '\0' x;echo;printf 'bad \377\376 bytes\n';"
    r"""for i in 1 2 3;do printf "\rstep $i";done;printf '\rdone 100%%\n\n\033[31mred\033[0m\nno end'"""
)
SHOWN = ["bad \\xff\\xfe bytes", "done 100%", " ", "\x1b[31mred\x1b[0m", "no end"]
TOLD = "clary: lines longer than 65536 bytes are shown in pieces"


def test_lines_of_every_shape_reach_the_api_and_the_command(service, aws):
    facts = run_command(aws, "shapes", PROGRAM, timeout_s=120)
    name = facts["TrainingJobName"]
    assert facts["TrainingJobStatus"] == "Completed", facts.get("FailureReason")
    messages = events_of(aws, name)
    pieces = [message for message in messages if set(message) == {"x"}]
    assert sum(map(len, pieces)) == LONG_BYTES
    assert max(map(len, pieces)) <= 65536
    assert messages.count(TOLD) == 1
    others = [message for message in messages if message not in pieces and not message.startswith("clary: ")]
    assert others == SHOWN
    printed = [line.partition(" | ")[2] for line in service.clary("logs", name).stdout.split("\n")[:-1]]
    assert printed == messages


def test_boto3_sets_and_removes_the_retention(aws):
    def retention():
        return aws.logs.describe_log_groups(logGroupNamePrefix=GROUP)["logGroups"][0].get("retentionInDays")

    assert retention() is None
    aws.logs.put_retention_policy(logGroupName=GROUP, retentionInDays=30)
    assert retention() == 30
    with pytest.raises(aws.logs.exceptions.InvalidParameterException, match="must be one of 1, 3, 5"):
        aws.logs.put_retention_policy(logGroupName=GROUP, retentionInDays=31)
    aws.logs.delete_retention_policy(logGroupName=GROUP)
    assert retention() is None
