"""Ranks inside one process that agree by ballots, without a process group."""

from __future__ import annotations

from functools import reduce

from clary.train.horovod.ballots import News, decode_news, encode_news, read_ballot, write_ballot
from clary.train.horovod.readiness import Readiness, Verdict
from clary.train.horovod.requests import Description


class DecidingRank:
    """One rank: the tensors that it has submitted, and the verdicts that it has received."""

    def __init__(self, size: int, capacity: int) -> None:
        self.readiness = Readiness(size, capacity)
        self.submitted: dict[str, Description] = {}
        self.announced: set[str] = set()
        self.has_joined = False
        self.has_told_join = False
        self.ran: list[tuple[str, str]] = []

    def news_and_mask(self) -> tuple[News, int]:
        """Return the news that this rank announces and the mask of bits that it sets, as `engine` does."""
        mask, announced = 0, []
        for name, description in self.submitted.items():
            index = self.readiness.index_of(name, description)
            if index is not None:
                mask |= 1 << index
            elif name not in self.announced:
                announced.append((name, False, description))
                self.announced.add(name)
        tells_join = self.has_joined and not self.has_told_join
        if self.has_joined and self.has_told_join:
            mask = (1 << self.readiness.num_indices) - 1
        self.has_told_join = self.has_joined
        return News(tells_join, tuple(announced)), mask


def run_round(ranks: list[DecidingRank]) -> list[Verdict]:
    """Run one round of all ranks on the bytes that would be sent; every rank applies the verdict."""
    told = [rank.news_and_mask() for rank in ranks]
    messages = [encode_news(news) if news else b"" for news, _ in told]
    ballots = [
        write_ballot(message, mask, rank.readiness.num_indices)
        for rank, message, (_, mask) in zip(ranks, messages, told, strict=True)
    ]
    combined = bytes(reduce(lambda a, b: bytes(x & y for x, y in zip(a, b, strict=True)), map(bytes, ballots)))
    outcome = read_ballot(combined)
    news = [decode_news(message) if message else News() for message in messages] if outcome.has_news else []
    assert not (outcome.has_news and outcome.is_same) or len(set(messages)) == 1
    verdicts = []
    for rank in ranks:
        verdict = rank.readiness.decide(news, outcome.ready_mask)
        for one in verdict.ready:
            rank.submitted.pop(one.name, None)
            rank.announced.discard(one.name)
            rank.ran.append((one.name, one.refusal))
        if verdict.last_joined is not None:
            rank.has_joined = rank.has_told_join = False
        verdicts.append(verdict)
    return verdicts
