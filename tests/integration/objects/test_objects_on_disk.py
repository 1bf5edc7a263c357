"""Objects of the real embedded store are on the disk after a flush: no page of its files waits to be written."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from clary.contract.launch_plan import Credentials
from clary.control.folder_flush import FolderFlush
from clary.control.objects.seaweed import EmbeddedStore
from clary.control.objects.store_client import StoreClient

STORE = Credentials(access_key_id="CLARYSTORE", secret_access_key="store-secret")
SIZE_BYTES = 1_000_000
NOTES_BYTES = 64 * 1024  # what the store may write for itself meanwhile
CACHESTAT = 451  # number of the system call, the same on all machines with Linux 6.5 or newer
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class Pages(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recent"))


def unwritten_bytes(folder: Path) -> int:
    """Return the size of the pages that a power cut would take."""
    libc, whole, count = ctypes.CDLL(None, use_errno=True), Range(0, 0), 0
    for path in (path for path in folder.rglob("*") if path.is_file()):
        pages = Pages()
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if libc.syscall(CACHESTAT, descriptor, ctypes.byref(whole), ctypes.byref(pages), 0):
                pytest.skip(f"this kernel does not tell which pages are unwritten: {os.strerror(ctypes.get_errno())}")
        finally:
            os.close(descriptor)
        count += pages.dirty + pages.writeback
    return count * PAGE_BYTES


async def test_after_a_flush_no_page_of_an_object_waits_to_be_written(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path, credentials=STORE)
    endpoint = await store.start()
    try:
        flush = FolderFlush(store.data_folder)
        async with StoreClient(endpoint) as client:
            for number in range(3):
                key, content = f"model-{number}.tar.gz", os.urandom(SIZE_BYTES)
                assert (await client.request("PUT", "clary", key=key, body=content)).status == 200
                before = unwritten_bytes(store.data_folder)
                if before < SIZE_BYTES:
                    pytest.skip("this file system does not hold data back")  # such as tmpfs
                await flush.flush("the test's object")
                assert unwritten_bytes(store.data_folder) < NOTES_BYTES
    finally:
        await store.stop()
