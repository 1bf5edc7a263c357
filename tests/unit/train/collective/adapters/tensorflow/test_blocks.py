"""Blocks of memory that are used again once nothing lies in them."""

from clary.train.collective.adapters.tensorflow.blocks import Blocks
from clary.train.collective.adapters.tensorflow.layout import ALIGNMENT


def address_of(array):
    return array.__array_interface__["data"][0]


def test_a_block_is_taken_again_when_its_last_view_has_gone():
    blocks = Blocks()
    block = blocks.take(1000)
    view = block[10:20].view("float16").reshape(5, 1)
    first = address_of(block)
    del block
    other = blocks.take(1000)
    assert address_of(other) != first, "a view of it lives"
    del view
    again = blocks.take(1000)
    assert address_of(again) == first
    assert address_of(blocks.take(1000)) not in (first, address_of(other))


def test_blocks_have_their_size_and_are_aligned():
    blocks = Blocks()
    for num_bytes in (0, 1, 63, 64, 65, 1 << 20):
        block = blocks.take(num_bytes)
        assert (block.shape, block.dtype.name) == ((num_bytes,), "uint8")
        assert address_of(block) % ALIGNMENT == 0 or num_bytes == 0


def test_blocks_of_many_sizes_are_forgotten_and_stay_whole_while_somebody_has_them():
    blocks = Blocks()
    kept = [blocks.take(100 + number) for number in range(40)]
    for number, block in enumerate(kept):
        block[:] = number
    assert all((block == number).all() for number, block in enumerate(kept))
