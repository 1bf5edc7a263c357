"""The proof of membership, without sockets: the words of each side, and its refusals."""

import struct

import pytest

from clary.train.collective.bootstrap.handshake import (
    MAGIC,
    NONCE_BYTES,
    PROOF_BYTES,
    Credentials,
    Guest,
    Refused,
    Role,
    SecretsDiffer,
    introduce,
    receive,
)

CREDENTIALS = Credentials(b"secret", "world", "generation")
GUEST = Guest(3, Role.SIDE)
HOST_RANK = 1


class End:
    """One side of a talk: takes bytes, collects its own words, and how it ended."""

    def __init__(self, talk):
        self._talk = talk
        self._pending = b""
        self._wish = next(talk)
        self.result = self.error = None
        self.has_ended = False

    def take(self, data):
        """Feed bytes; return the answer."""
        self._pending += data
        said = b""
        try:
            while True:
                if isinstance(self._wish, bytes):
                    said += self._wish
                    self._wish = next(self._talk)
                elif len(self._pending) >= self._wish:
                    got, self._pending = self._pending[: self._wish], self._pending[self._wish :]
                    self._wish = self._talk.send(got)
                else:
                    return said
        except StopIteration as end:
            self.result, self.has_ended = end.value, True
        except Refused as refusal:
            self.error, self.has_ended = refusal, True
        return said


def talk(guest_end, host_end, *, change=lambda turn, data: data):
    """Carry bytes between the ends until nobody says anything; `change` may falsify them on their way."""
    carried, turn = guest_end.take(b""), 0
    while carried:
        turn += 1
        receiver = host_end if turn % 2 else guest_end
        carried = receiver.take(change(turn, carried))


def ends(guest_credentials=CREDENTIALS, host_credentials=CREDENTIALS, *, own=GUEST, meant=HOST_RANK, expected=None):
    is_expected = (lambda guest: guest == GUEST) if expected is None else expected
    return End(introduce(guest_credentials, own, meant)), End(receive(host_credentials, HOST_RANK, is_expected))


def test_members_prove_themselves_to_each_other():
    guest_end, host_end = ends()
    talk(guest_end, host_end)
    assert guest_end.has_ended
    assert guest_end.error is None
    assert host_end.result == GUEST


@pytest.mark.parametrize(
    "other",
    [
        Credentials(b"another", "world", "generation"),
        Credentials(b"secret", "elsewhere", "generation"),
        Credentials(b"secret", "world", "earlier"),
    ],
)
def test_another_secret_group_or_attempt_is_refused_by_both_sides(other):
    guest_end, host_end = ends(other)
    talk(guest_end, host_end)
    assert isinstance(host_end.error, SecretsDiffer)
    assert "rank 3" in str(host_end.error)
    assert isinstance(guest_end.error, SecretsDiffer)


def test_a_guest_that_is_not_expected_is_refused_before_anything_is_said():
    for own, meant in ((Guest(2, Role.SIDE), HOST_RANK), (Guest(3, Role.LANE), HOST_RANK), (GUEST, 0)):
        guest_end, host_end = ends(own=own, meant=meant)
        assert host_end.take(guest_end.take(b"")) == b""
        assert "not expected here" in str(host_end.error)


def test_garbage_is_refused_after_its_first_bytes():
    _, host_end = ends()
    assert host_end.take(b"GET / HTTP/1.1\r\n\r\n") == b""
    assert "no greeting of this protocol" in str(host_end.error)


def test_an_unknown_role_is_refused():
    _, host_end = ends()
    host_end.take(MAGIC + struct.pack("<BII32s", 9, 3, 1, bytes(NONCE_BYTES)))
    assert "unknown role 9" in str(host_end.error)


@pytest.mark.parametrize("turn", [1, 2, 3, 4])
def test_a_single_changed_bit_in_any_message_is_refused(turn):
    guest_end, host_end = ends()

    def flip_last_bit(at, data):
        return data[:-1] + bytes([data[-1] ^ 1]) if at == turn else data

    talk(guest_end, host_end, change=flip_last_bit)
    assert guest_end.error is not None


def test_a_recorded_talk_cannot_be_played_again():
    recorded = []
    guest_end, host_end = ends()
    talk(guest_end, host_end, change=lambda turn, data: recorded.append(data) or data)
    greeting, _, proof, _ = recorded
    _, second = ends()
    second.take(greeting)
    second.take(proof)
    assert isinstance(second.error, SecretsDiffer)


def test_the_own_proof_sent_back_is_no_proof():
    guest_end, host_end = ends()
    nonce = host_end.take(guest_end.take(b""))
    own_proof = guest_end.take(nonce)
    guest_end.take(b"\x01" + own_proof)
    assert isinstance(guest_end.error, Refused)
    assert "not rank 1 of group 'world'" in str(guest_end.error)


def test_who_proves_nothing_gets_no_proof():
    guest_end, host_end = ends()
    host_end.take(guest_end.take(b""))
    answer = host_end.take(bytes(PROOF_BYTES))
    assert answer == bytes(1 + PROOF_BYTES)


def test_the_secret_is_not_shown():
    assert "secret" not in repr(CREDENTIALS).replace("secret=", "")
