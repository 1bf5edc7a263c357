"""Text of the certificate that states how a rehearsed job resumes."""

from __future__ import annotations

from collections.abc import Sequence

from clary.cli.tables import duration, table
from clary.control.rehearsal.certificate import Certificate, Interruption
from clary.control.rehearsal.comparing import LossCheck, SampleCheck

WIDTH = 15


def certificate_text(certificate: Certificate) -> str:
    """Return the text that `clary rehearse` ends with."""
    lines = [
        "RESUME CERTIFICATE",
        _row("rehearsal", certificate.rehearsal),
        _row("twin", certificate.twin),
        "",
        "faults",
        *[f"  {line}" for line in _strike_lines(certificate)],
    ]
    if certificate.interruptions:
        lines += ["", "interruptions", *[f"  {line}" for line in _interruption_lines(certificate.interruptions)]]
    seconds = "-"
    if certificate.seconds_lost is not None:
        compared = "less" if certificate.seconds_lost < 0 else "more"
        seconds = f"{abs(certificate.seconds_lost):.1f} s {compared} than the twin"
    if certificate.redone_s:
        seconds += f"; {duration(certificate.redone_s)} of training was done again"
    lines += [
        "",
        _row("steps lost", str(certificate.steps_lost)),
        _row("seconds lost", seconds),
        _row("samples", _samples(certificate.samples)),
        _row("losses", _losses(certificate.losses)),
    ]
    for name, (of_twin, of_rehearsal) in certificate.metrics.items():
        lines.append(_row(f"{name}", f"{_value(of_rehearsal)} (twin {_value(of_twin)})"))
    lines += ["", f"{certificate.verdict.value}: {certificate.reason}"]
    if certificate.advice:
        lines.append(f"  what to do: {certificate.advice}")
    return "\n".join(lines)


def _row(label: str, text: str) -> str:
    return f"  {label:<{WIDTH}}{text}"


def _strike_lines(certificate: Certificate) -> list[str]:
    rows = [
        (
            strike.words,
            "never" if strike.at_s is None else f"{strike.at_s:.1f} s",
            strike.note or "-",
        )
        for strike in certificate.strikes
    ]
    return table(("FAULT", "STRUCK", "NOTE"), rows).splitlines() if rows else ["none"]


def _interruption_lines(interruptions: Sequence[Interruption]) -> list[str]:
    rows = [
        (
            str(item.attempt),
            item.last_step or "-",
            item.first_step or "-",
            "?" if item.lost_steps is None else str(item.lost_steps),
            str(item.restored_files),
            item.why,
        )
        for item in interruptions
    ]
    return table(("ATTEMPT", "LAST STEP", "RESUMED AT", "LOST", "FILES RESTORED", "WHY"), rows).splitlines()


def _samples(check: SampleCheck) -> str:
    if not check.is_known:
        return check.words
    if check.is_whole:
        return f"{check.num_compared} drawn, each as often as by the twin ({check.words})"
    twice, never = ", ".join(check.examples_twice[:5]), ", ".join(check.examples_never[:5])
    text = f"{check.num_twice} seen once too often ({twice}...), {check.num_never} too seldom ({never}...)"
    return f"{text}; others from optimizer step {check.first_other_step} on ({check.words})"


def _losses(check: LossCheck) -> str:
    if not check.num_compared:
        return "not found"
    text = f"{check.num_equal} of {check.num_compared} equal as printed, the others within {check.largest:.2g}"
    if check.num_equal == check.num_compared:
        text = f"all {check.num_compared} equal as printed"
    if check.noise:
        text += f"; {check.noise:.2g} apart without a fault"
    if check.parts_at is not None:
        text += f"; they part at step {check.parts_at}: {check.there}, twin {check.twin_there}"
    return text


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
