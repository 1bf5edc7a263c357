"""Wrong tokens from one address are answered slower and slower, in bounded memory."""

import pytest

from clary.control.server.edge.guesses import MAX_ADDRESSES, MAX_DELAY_S, MAX_WRONG, WRONG_S, GuessLimiter
from clary.testing.fake_clock import FakeClock


def test_a_guesser_is_slowed_down_and_forgiven_after_a_while():
    clock = FakeClock()
    limiter = GuessLimiter(clock)
    first = [limiter.note_wrong("a") for _ in range(MAX_WRONG)]
    assert {(guess.delay_s, guess.retry_after_s) for guess in first} == {(0, 0)}
    later = [limiter.note_wrong("a") for _ in range(20)]
    delays = [guess.delay_s for guess in later]
    assert delays == sorted(delays)
    assert (delays[0] > 0, delays[-1]) == (True, MAX_DELAY_S)
    assert later[0].retry_after_s == pytest.approx(WRONG_S)
    assert limiter.note_wrong("b").delay_s == 0
    clock.advance(WRONG_S)
    assert limiter.note_wrong("a").delay_s == 0


def test_a_bounded_number_of_addresses_is_remembered():
    limiter = GuessLimiter(FakeClock())
    for number in range(MAX_ADDRESSES + 10):
        for _ in range(MAX_WRONG + 1):
            limiter.note_wrong(str(number))
    assert limiter.note_wrong("0").delay_s == 0
    assert limiter.note_wrong(str(MAX_ADDRESSES + 9)).delay_s > 0
    assert len(limiter._wrong) == MAX_ADDRESSES
    assert len(limiter._excess) <= MAX_ADDRESSES
