"""Program that uses the cache like an agent, until a test kills it; run as `program CACHE URL LIMIT_BYTES SEED`.

Repeatedly fetches channels of the bucket `data`, releases and removes them, tidies the cache, and evicts entries to
keep a tight size limit. Prints a line at its start, one for each fetched channel, and one when it leaves a channel in
the cache.
"""

import random
import sys
from pathlib import Path

from clary.agent.channels.cache import CacheUnusable, ChannelCache
from clary.agent.channels.cache.folder import CacheFolder, boot_id
from clary.agent.channels.selection import select_objects
from clary.contract.launch_plan import Channel, Credentials, Endpoint
from clary.contract.object_store import ObjectStore

CHANNELS = ("one", "two", "three")


def main():
    folder, url, limit_bytes, seed = sys.argv[1:]
    chance = random.Random(seed)
    credentials = Credentials(access_key_id="agent-key", secret_access_key="agent-secret")
    cache = ChannelCache(Path(folder), limit_bytes=int(limit_bytes), endpoint_url=url, lock_wait_s=5.0)
    everything = CacheFolder(Path(folder), boot=boot_id())
    with ObjectStore(Endpoint(url=url, region="us-west-2", credentials=credentials)) as store:
        print("begun", flush=True)
        while True:
            name = chance.choice(CHANNELS)
            compression = chance.choice(("None", "Gzip"))
            channel = Channel(name=name, s3_uri=f"s3://data/{name}/{compression}", compression=compression)
            selection = select_objects(channel, store=store)
            objects = selection.objects[chance.randrange(3) :]  # varies the tree with the same objects
            try:
                snapshot = cache.snapshot(objects, selection.folders, channel=channel, store=store)
            except CacheUnusable as reason:
                print("not used:", reason.message, flush=True)
                continue
            print("brought", name, flush=True)
            snapshot.release()
            if chance.random() < 0.8:
                everything.remove_snapshot(snapshot.path)  # so that most rounds make a snapshot
            else:
                print("left", name, flush=True)
            if chance.random() < 0.1:
                cache.tidy()


main()
