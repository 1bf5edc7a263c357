"""Verdicts on the readings of a single host: disk, memory, clock. Pure.

Where: `host_checks` takes the readings, before a job's program starts and every half minute while it runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from clary.contract.health import WARN_CLOCK_S, Check, FindingState, HealthFinding, seconds_in_words

MIB, GIB = 1024**2, 1024**3
_WARN_FREE_BYTES, _BAD_FREE_BYTES = 2 * GIB, 256 * MIB
_LOW_WRITE_BYTES_S = 1 * MIB  # for a few MiB with fsync; a disk shared with other machines may be near this limit
_WARN_MEMORY_SHARE = 0.25  # share of the host's limit
_NO_LIMIT_BYTES = 2 * GIB  # assumed need of a host without a limit
_BAD_MEMORY_BYTES = 128 * MIB
_BAD_CLOCK_S = 60.0  # signatures tolerate five minutes

OK, WARN, BAD, SKIPPED = FindingState.OK, FindingState.WARN, FindingState.BAD, FindingState.SKIPPED


@dataclass(frozen=True, kw_only=True)
class DiskReading:
    """Reading of the disk below a host's folder; None for speeds that were not measured."""

    folder: str
    free_bytes: int
    written_bytes: int = 0
    write_s: float | None = None  # includes fsync
    error: str = ""


def disk_finding(host: str, reading: DiskReading) -> HealthFinding:
    """Judge the free space and the speed of the disk."""
    free = f"{reading.free_bytes / GIB:.1f} GiB free at {reading.folder}"

    def finding(state: FindingState, words: str, cause: str = "") -> HealthFinding:
        return HealthFinding(check=Check.DISK, state=state, host=host, words=words, cause=cause)

    if reading.error:
        return finding(
            BAD, f"{reading.folder} cannot be written: {reading.error}", "the disk is full, read-only or gone"
        )
    if reading.free_bytes < _BAD_FREE_BYTES:
        return finding(BAD, f"{free}, expected {_BAD_FREE_BYTES / GIB:g} GiB or more", "the disk is full")
    if reading.free_bytes < _WARN_FREE_BYTES:
        return finding(WARN, f"{free}, expected {_WARN_FREE_BYTES / GIB:g} GiB or more", "the disk is nearly full")
    if reading.write_s is None:
        return finding(OK, free)
    speed = reading.written_bytes / max(reading.write_s, 1e-6)
    words = f"{free}, {speed / MIB:.0f} MiB/s written"
    if speed < _LOW_WRITE_BYTES_S:
        words = f"{free}, {speed / MIB:.2f} MiB/s written, expected {_LOW_WRITE_BYTES_S / MIB:g} or more"
        return finding(WARN, words, "the disk is slow, or busy with others' writes")
    return finding(OK, words)


def memory_finding(host: str, available_bytes: int | None, limit_bytes: int | None) -> HealthFinding:
    """Judge whether the machine's available memory suffices for a host.

    Args:
        host: name of the host.
        available_bytes: memory available to programs now; None if unknown.
        limit_bytes: memory limit of the host; None: no limit.
    """

    def finding(state: FindingState, words: str, cause: str = "") -> HealthFinding:
        return HealthFinding(check=Check.MEMORY, state=state, host=host, words=words, cause=cause)

    if available_bytes is None:
        return finding(SKIPPED, "the machine does not say how much memory is available")
    limit = f"the host's limit is {limit_bytes / GIB:.1f} GiB" if limit_bytes is not None else "the host has no limit"
    words = f"{available_bytes / GIB:.1f} GiB available, {limit}"
    wanted = limit_bytes if limit_bytes is not None else _NO_LIMIT_BYTES
    cause = "other programs of the machine have it"
    if available_bytes < min(_BAD_MEMORY_BYTES, wanted):
        return finding(BAD, words, cause)
    return finding(WARN, words, cause) if available_bytes < wanted * _WARN_MEMORY_SHARE else finding(OK, words)


def clock_finding(host: str, offset_s: float | None, why_not: str = "") -> HealthFinding:
    """Judge the offset of this host's clock from the service's clock.

    Args:
        host: name of the host.
        offset_s: seconds ahead, negative if behind; None if it was not measured.
        why_not: reason why the offset was not measured.
    """
    if offset_s is None:
        return HealthFinding(check=Check.CLOCK, state=SKIPPED, host=host, words=why_not)
    off = abs(offset_s)
    words = "as the service's"
    if off:
        words = f"{seconds_in_words(off)} {'ahead of' if offset_s > 0 else 'behind'} the service's"
    if off < WARN_CLOCK_S:
        return HealthFinding(check=Check.CLOCK, state=OK, host=host, words=words, clock_offset_s=offset_s)
    return HealthFinding(
        check=Check.CLOCK,
        state=BAD if off >= _BAD_CLOCK_S else WARN,
        host=host,
        words=f"{words}, expected less than {WARN_CLOCK_S:g} s",
        cause="the machine's clock is not kept: have NTP set it",
        clock_offset_s=offset_s,
    )
