"""Streams of the reference core over real sockets."""

import socket
import threading

from clary.train._native.reference_streams import Callbacks, Frame, FrameKind, StreamLoop


def test_the_last_messages_of_a_peer_are_delivered_before_its_loss():
    side, far_side = socket.socketpair()
    lane, far_lane = socket.socketpair()
    events = []
    is_lost = threading.Event()
    bad_news = Frame(FrameKind.BAD_NEWS, 3, 1, label="the first cause")

    def end_the_lane_first():
        if far_lane.fileno() >= 0:
            far_lane.close()
            far_side.sendall(bad_news.encode())
            far_side.close()

    def lose(peer, words):
        events.append(("lost", peer))
        is_lost.set()

    callbacks = Callbacks(
        on_frame=lambda peer, frame: events.append((frame.label, peer)),
        on_goodbye=lambda peer: events.append(("goodbye", peer)),
        on_loss=lose,
        before_wait=end_the_lane_first,
    )
    streams = StreamLoop([-1, side.detach()], [-1, lane.detach()], callbacks, name="test")
    streams.start()
    assert is_lost.wait(5)
    streams.close(says_goodbye=False, limit_s=1)
    assert events[:2] == [("the first cause", 1), ("lost", 1)]
