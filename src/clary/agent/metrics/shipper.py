"""The thread that sends rows to the service.

Where: `metrics.host_metrics` starts it together with `sampling`. It ends if the service is an older release that
accepts no rows.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Protocol

from clary.agent.metrics.row_store import RowStore
from clary.agent.sender import NotWanted, Parcel, Sender
from clary.agent.service_client import AttemptOver, BackOff
from clary.contract.metric_samples import SampleBatch, SampleReceipt

INTERVAL_S = 5.0
_MAX_PAUSE_S = 5.0  # between tries while the service is unreachable

logger = logging.getLogger(__name__)


class SampleReceiver(Protocol):
    """The part of the service that the shipper uses."""

    def send_samples(self, batch: SampleBatch) -> SampleReceipt:
        """Store a batch. Raises: ServiceUnreachable, ServiceRefused, AttemptOver."""


class SampleShipper(Sender):
    """Sends rows in order until `abort`.

    Args:
        service: receives the rows.
        store: source of the rows.
        on_unwanted: called when measuring has become useless; from the shipper's thread.
        interval_s: time between two batches.
    """

    def __init__(
        self,
        service: SampleReceiver,
        *,
        store: RowStore,
        on_unwanted: Callable[[], None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__(
            "metrics-shipper",
            failure="metrics are not sent any more",
            what="rows of the metrics",
            source=store,
            give_up=store.give_up,
            back_off=BackOff(first_s=0.2, cap_s=_MAX_PAUSE_S),
            # Hosts of a job start together, but should not post together.
            first_pause_s=interval_s * random.uniform(0.2, 1.0),
        )
        self._service = service
        self._store = store
        self._on_unwanted = on_unwanted
        self._interval_s = interval_s

    def _round(self) -> float | None:
        try:
            return self._send_all() or self._interval_s
        except AttemptOver:
            pass
        except NotWanted:
            logger.info("the service takes no metrics of hosts: nothing is measured")
        self._on_unwanted()
        return None

    def _on_failure(self, error: Exception) -> None:
        self._on_unwanted()

    def _parcel(self) -> Parcel | None:
        batch = self._store.batch()
        if batch is None:
            return None
        end = batch.first_row + len(batch.at_ms)
        return Parcel(batch.first_row, end, lambda: self._service.send_samples(batch).next_row)
