"""The watch over a job's links: its detection of hosts that are cut off, and its record of them."""

import socket
import time

import pytest

from clary.control.engines.local.network import link_watch
from clary.control.engines.local.network.link_watch import LinkWatch, cut_off_hosts, read_cut_off

ADDRESSES = [bytes([2, 0, 10, 77, 0, number]) for number in (1, 2, 3)]
NAMES = ["algo-1", "algo-2", "algo-3"]
LIMIT = round(link_watch.CUT_OFF_AFTER_S / link_watch.FRAME_INTERVAL_S)


class Link:
    """A socket of one host: frames reach the next host unless one of the two is cut off."""

    def __init__(self, network, index):
        self._network = network
        self._index = index
        self.waiting = []

    def send(self, frame):
        self.waiting.append((frame, ("eth0", 0, socket.PACKET_OUTGOING, 1, b"")))
        receiver = next(index for index, address in enumerate(ADDRESSES) if frame[:6] == address)
        if not self._network.cut & {self._index, receiver}:
            self._network.links[receiver].waiting.append((frame, ("eth0", 0, socket.PACKET_HOST, 1, b"")))

    def recvfrom(self, _size):
        if not self.waiting:
            raise BlockingIOError
        return self.waiting.pop(0)


class Network:
    def __init__(self, path, num_hosts):
        self.cut = set()
        self.path = str(path / "cut-off.json")
        self.links = [Link(self, index) for index in range(num_hosts)]
        self._watch = LinkWatch(NAMES[:num_hosts], self.links, ADDRESSES[:num_hosts], path=self.path)

    def rounds(self, count):
        for _ in range(count):
            self._watch.make_round()
        return list(read_cut_off(self.path))


@pytest.mark.parametrize(
    ("missed", "expected"),
    [
        ([0, 0, 0], []),
        ([9, 9, 0], [1]),  # the second host neither sends nor receives
        ([9, 0, 9], [0]),
        ([9, 0, 0], []),  # one direction between one pair is no cut link
        ([9, 9, 9, 0], [1, 2]),
        ([9, 0], []),
        ([9, 9], [1]),  # with two hosts the cut one is unknown
    ],
)
def test_a_host_is_cut_off_when_nothing_passes_to_or_from_it(missed, expected):
    assert cut_off_hosts(missed, 9) == expected


@pytest.mark.parametrize("num_hosts", [2, 3])
def test_a_cut_link_is_recorded_after_the_limit_and_removed_when_it_heals(tmp_path, num_hosts):
    network = Network(tmp_path, num_hosts)
    assert network.rounds(3 * LIMIT) == []
    network.cut = {1}
    assert network.rounds(LIMIT - 1) == []
    assert network.rounds(2) == ["algo-2"]
    network.cut = set()
    assert network.rounds(2) == []


def test_a_folder_that_is_gone_does_not_end_the_watch(tmp_path):
    network = Network(tmp_path, 2)
    network.path = network._watch._path = str(tmp_path / "gone" / "cut-off.json")
    network.cut = {0}
    assert network.rounds(2 * LIMIT) == []


@pytest.mark.parametrize("num_hosts", [2, 3])
def test_a_delayed_watch_records_the_send_time_of_the_last_frame_that_arrived(tmp_path, num_hosts):
    network = Network(tmp_path, num_hosts)
    # ten seconds between two reads of the clock: far slower than the planned interval
    seconds = iter(range(1000, 10_000, 10))
    network._watch._monotonic, network._watch._last_sent_s = lambda: next(seconds), [0.0] * num_hosts
    network.rounds(1)  # these frames arrive, although they are read late
    network._watch._monotonic = lambda: 5000.0
    network.cut = {1}
    network.rounds(LIMIT + 1)
    assert read_cut_off(network.path) == {"algo-2": 1000.0}


def test_records_of_an_older_watch_can_be_read(tmp_path):
    # Names alone, or names with epoch seconds, which are no longer trusted.
    for text in ('["algo-2"]', '{"algo-2": 1767225600.5}'):
        (tmp_path / "old.json").write_text(text)
        assert read_cut_off(str(tmp_path / "old.json")) == {"algo-2": None}


def test_setting_the_clock_does_not_change_the_time_of_a_links_last_frame(tmp_path, monkeypatch):
    network = Network(tmp_path, 2)
    network.rounds(1)
    monkeypatch.setattr(link_watch.time, "time", lambda: 0.0)  # set back by half a century
    before_s = time.monotonic()
    network.rounds(2)
    network.cut = {1}
    network.rounds(LIMIT + 1)
    assert before_s <= read_cut_off(network.path)["algo-2"] <= time.monotonic()
