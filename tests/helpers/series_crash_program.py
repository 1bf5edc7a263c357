"""Program that sends rows of four hosts concurrently to a store until it is killed, and prints the acknowledgements.

Run it with the URL of a database that has a job called `job`. It continues at the row that the store returns as next,
and sends every batch with rows that are already stored, as agents do after a lost response.
"""

import asyncio
import sys

from series_contract import table

from clary.control.store.store import Store

HOSTS = ("algo-1", "algo-2", "algo-3", "algo-4")
BATCH_ROWS, OVERLAP_ROWS = 10, 4


async def send(url: str) -> None:
    store = await Store.open(url)
    empty = table(0)
    next_rows = {host: await store.series.append("job", 1, host, empty, first_row=0) for host in HOSTS}

    async def send_next(host: str) -> None:
        first = max(0, next_rows[host] - OVERLAP_ROWS)
        next_rows[host] = await store.series.append("job", 1, host, table(BATCH_ROWS, first=first), first_row=first)
        print(host, next_rows[host], flush=True)

    while True:
        await asyncio.gather(*map(send_next, HOSTS))


if __name__ == "__main__":
    asyncio.run(send(sys.argv[1]))
