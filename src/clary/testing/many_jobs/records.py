"""A client's task and its report, which two processes exchange as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Life(StrEnum):
    """The life that a job is meant to have."""

    FINISHES = "finishes"  # ends by itself with 0
    FAILS = "fails"  # ends by itself with another code
    STOPPED_AT_ONCE = "stopped_at_once"  # would run for ever; stopped once accepted, most often in the queue
    STOPPED_RUNNING = "stopped_running"  # would run for ever; stopped as soon as its secondary status is Training
    STOPPED_ENDING = "stopped_ending"  # ends by itself with 0; stopped in Training, perhaps too late


@dataclass(frozen=True, kw_only=True)
class ClientTask:
    """The task of one client."""

    index: int
    endpoint_url: str
    region: str
    access_key_id: str
    secret_access_key: str
    num_jobs: int  # jobs that the client keeps alive at once
    seconds: float  # time during which it creates jobs
    drain_s: float  # longest time after that for the remaining jobs to end
    pause_s: float  # between two descriptions of jobs
    seed: int


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """One job from its creation to its deletion; times are seconds of `time.time`."""

    name: str
    client: int
    life: Life
    num_hosts: int
    submitted_at: float
    created_at: float  # CreationTime
    admitted_from: float | None  # earliest possible time of the request for hosts; None without a request
    admitted_until: float | None  # latest possible time of that request
    first_line_at: float | None  # first line of the last host to print
    status: str  # the terminal status
    ended_at: float  # time at which the client saw that status


@dataclass(frozen=True, kw_only=True)
class ClientReport:
    """The report of one client: its jobs, requests and violations."""

    index: int
    jobs: tuple[JobRecord, ...]
    latencies_s: Mapping[str, tuple[float, ...]]  # by operation, refusals separately; includes boto3's retries
    refusals: Mapping[str, int]  # "Operation Code" -> number of refusals
    num_retries: int  # by boto3
    num_throttled: int  # throttling answers, which boto3 retries
    wrongs: tuple[str, ...]  # every violation that the client saw
    num_alive_at_most: int
