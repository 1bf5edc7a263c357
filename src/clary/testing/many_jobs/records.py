"""A client's task and its report; both travel as JSON between two processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Life(StrEnum):
    """The life that a job is meant to have."""

    FINISHES = "finishes"  # ends by itself with 0
    FAILS = "fails"  # ends by itself with another code
    STOPPED_AT_ONCE = "stopped_at_once"  # would run for ever; stopped once accepted, most often while it waits
    STOPPED_RUNNING = "stopped_running"  # would run for ever; stopped as soon as it says Training
    STOPPED_ENDING = "stopped_ending"  # ends by itself with 0; stopped as soon as it says Training, perhaps too late


@dataclass(frozen=True, kw_only=True)
class ClientTask:
    """The task of one client."""

    index: int
    endpoint_url: str
    region: str
    access_key_id: str
    secret_access_key: str
    num_jobs: int  # that it keeps alive at once
    seconds: float  # during which it creates jobs
    drain_s: float  # after that, for the remaining jobs to end
    pause_s: float  # between two looks at jobs
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
    admitted_from: float | None  # earliest time of the request for hosts; None if they never were requested
    admitted_until: float | None  # latest time of it
    first_line_at: float | None  # of its last host to print
    status: str  # the terminal status
    ended_at: float  # when the client saw that status


@dataclass(frozen=True, kw_only=True)
class ClientReport:
    """The record of one client: its jobs, requests and findings."""

    index: int
    jobs: tuple[JobRecord, ...]
    latencies_s: Mapping[str, tuple[float, ...]]  # by operation, separately if refused; with retries by boto3
    refusals: Mapping[str, int]  # "Operation Code" -> how often
    num_retries: int  # by boto3
    num_throttled: int  # answers that were throttles; boto3 retries those
    wrongs: tuple[str, ...]  # every violation that it saw
    num_alive_at_most: int
