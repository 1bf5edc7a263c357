"""Log events of a job."""

from __future__ import annotations

GROUP = "/aws/sagemaker/TrainingJobs"


def events_of(aws, name):
    """Return all messages of a job of one host."""
    streams = aws.logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{name}/")["logStreams"]
    token, found = None, []
    while True:
        more = {"nextToken": token} if token else {"startFromHead": True}
        page = aws.logs.get_log_events(logGroupName=GROUP, logStreamName=streams[0]["logStreamName"], **more)
        found += [event["message"] for event in page["events"]]
        if page["nextForwardToken"] == token:
            return found
        token = page["nextForwardToken"]
