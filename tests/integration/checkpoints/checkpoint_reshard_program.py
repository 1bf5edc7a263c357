"""Steps saved on one number of ranks and restored on another; CLARY_TEST_RESTORE and CLARY_TEST_SAVE name them."""

import os

from checkpoint_states import assert_same, expected, host_folder, keep_expected, make, train, whole

from clary.train import checkpoint


def go_on(kind, rank, size):
    """Restore the checkpoint of earlier ranks, train on, and save; ranks share no folder and send data by the group."""
    keeper = checkpoint.Keeper(host_folder(kind, rank, size), limit_s=20)
    state = make(kind, seed=1 + size)
    restored = os.environ.get("CLARY_TEST_RESTORE")
    step = keeper.restore(state)
    if restored:
        assert step == int(restored), step
        assert_same(whole(state), expected(f"{kind}-{restored}"))
    else:
        assert step is None
    saved = os.environ.get("CLARY_TEST_SAVE")
    if saved:
        train(state, 2)
        keep_expected(f"{kind}-{saved}", state)
        keeper.save(int(saved), state)
        train(state, 1)  # the saved values are those at the call
    keeper.close()


def test_sharded_models(rank, size):
    go_on("sharded", rank, size)


def test_replicated_models(rank, size):
    go_on("replicated", rank, size)


def test_plain_models(rank, size):
    go_on("plain", rank, size)
