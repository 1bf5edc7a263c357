"""Checks a boot's munge credential: this user must have made it, and it must hold the tag and the index.

Where: `scheduler.why_not_proved`. munged decodes each credential once and refuses it a second time, so that a recorded
credential cannot be sent again.
Source: munge(7), unmunge(1), munge_enum(3).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from clary.base.errors import EngineError
from clary.control.engines.slurm.programs import SlurmPrograms

LIMIT_S = 5.0
MAX_PROOF_LETTERS = 4096
_CREDENTIAL = re.compile(r"MUNGE:[A-Za-z0-9+/]{16,}={0,3}:")
_REFUSALS: Mapping[int, str] = {
    15: "it has expired; the clocks of node and service may differ",
    16: "it comes from the future; the clocks of node and service differ",
    17: "it was used before",
}


def why_not_proved(programs: SlurmPrograms, proof: str, *, expected: str, uid: int, socket: str = "") -> str:
    """Return the reason why a credential is not accepted; empty if it is.

    Args:
        programs: runs unmunge.
        proof: the credential.
        expected: text that the credential must hold.
        uid: user id of the user who must have made it.
        socket: socket of munged; empty for munge's default.
    """
    if len(proof) > MAX_PROOF_LETTERS or not _CREDENTIAL.fullmatch(proof):
        return "the proof is no munge credential"
    options = ("--numeric", "--keys=STATUS,UID", *([f"--socket={socket}"] if socket else []))
    try:
        done = programs.run_now("unmunge", *options, text=proof, limit_s=LIMIT_S)
    except EngineError as error:
        return f"munge could not be asked: {error.message}"
    if done.code != 0:
        return f"munge refuses the credential: {_REFUSALS.get(done.code, done.words)}"
    head, sign, payload = done.output.partition("\n\n")
    values = dict(line.replace(" ", "").partition(":")[::2] for line in head.split("\n"))
    if not sign or values.get("STATUS") != "0" or not values.get("UID", "").isdigit():
        return "munge's answer could not be read"
    if int(values["UID"]) != uid:
        return f"the credential was made by user {values['UID']}; expected {uid}"
    if payload != expected:
        return f"the credential is over other words than {expected!r}"
    return ""
