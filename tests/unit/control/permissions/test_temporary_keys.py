"""Temporary keys: the secret, the end and the holder that a token proves."""

import base64
from datetime import timedelta

import pytest

from clary.control.permissions.temporary_keys import TemporaryKeys
from clary.testing.fake_clock import START

KEYS = TemporaryKeys(b"master")
END = START + timedelta(seconds=60)
# Made by the release before tokens named a holder, with the master key b"master" and the end END.
OLD_KEY = "CLARYTEMPAAAAAAAAAAAAAAAA"
OLD_TOKEN = "AAAAAGlVuTzsqgH8Ci0ulKc7z5dNcgvJgDncGiuLr2RKRLw22bZUyQ=="
OLD_SECRET = "055a7438"


@pytest.mark.parametrize("holder", ["", "Role/session", "R+=,.@-_/" + "s" * 64])
def test_a_token_proves_the_secret_and_the_holder(holder):
    made = KEYS.make(END, holder=holder)
    verdict = KEYS.judge(made.access_key_id, made.session_token, now=START)
    assert (verdict.secret, verdict.holder) == (made.secret_access_key, holder)
    late = KEYS.judge(made.access_key_id, made.session_token, now=END)
    assert (late.secret, late.has_expired) == ("", True)


@pytest.mark.parametrize("holder", ["Other/session", "", "Role/session2", "Role", b"\xff/x"])
def test_a_token_with_another_holder_is_unknown(holder):
    made = KEYS.make(END, holder="Role/session")
    content = base64.urlsafe_b64decode(made.session_token)[: -len("Role/session")]
    content += holder if isinstance(holder, bytes) else holder.encode()
    forged = base64.urlsafe_b64encode(content).decode()
    verdict = KEYS.judge(made.access_key_id, forged, now=START)
    assert (verdict.secret, verdict.has_expired, verdict.holder) == ("", False, "")


def test_a_token_from_before_tokens_named_a_holder_stays_valid():
    verdict = KEYS.judge(OLD_KEY, OLD_TOKEN, now=START)
    assert (verdict.secret[:8], verdict.holder) == (OLD_SECRET, "")
