"""Binds of a host whose paths are replaced by symbolic links: nothing outside the bind is shown, created or written."""

import os
from dataclasses import replace

import pytest
from host_world import DEADLINE_S, shell
from host_worlds import ISOLATED, world_of

from clary.agent.host import kernel
from clary.agent.host.sandbox import Bind
from clary.base.errors import AgentError, WireError
from clary.contract.launch_plan import Channel
from clary.control.file_systems import require_folder

TARGET = "/opt/ml/input/data/train"
CHANNEL = Channel(name="train", s3_uri=None, file_system_id="fs-0123456789abcdef0", file_system_folder="deep")


world = world_of(ISOLATED)


def refusal(world, sandbox):
    with pytest.raises(AgentError) as caught:
        world.start(shell("true"), sandbox=sandbox)
    return str(caught.value)


def test_a_folder_of_a_file_system_is_shown_with_the_requested_access(world):
    shared = world.folder("shared")
    (world.folder("shared/sets/one") / "file").write_text("data")
    for is_read_only in (True, False):
        bind = Bind(source=str(shared), below="sets/one", target=TARGET, read_only=is_read_only)
        output = world.run(f"cat {TARGET}/file; touch {TARGET}/new", sandbox=world.sandbox(binds=(bind,)))
        assert output.startswith("data")
        assert ("Read-only" in output) == is_read_only
    assert (shared / "sets" / "one" / "new").exists()


@pytest.mark.parametrize("place", ["sets", "sets/one"])
def test_a_symbolic_link_inside_a_file_system_is_not_followed(place, world):
    shared, machine = world.folder("shared"), world.folder("machine")
    world.folder("machine/one")
    world.folder("shared/sets/one")
    (shared / place).rename(shared / "moved")
    (shared / place).symlink_to(machine)
    bind = Bind(source=str(shared), below="sets/one", target=TARGET)
    message = refusal(world, world.sandbox(binds=(bind,)))
    assert str(shared) in message
    assert "without following links" in message


@pytest.mark.parametrize("below", ["", "state", "state/secrets"])
def test_a_file_system_does_not_show_a_hidden_folder(below, world):
    shared = world.folder("shared")
    world.folder("shared/state/secrets")
    bind = Bind(source=str(shared), below=below, target=TARGET)
    hidden = (str(shared / "state"),)
    message = refusal(world, world.sandbox(binds=(bind,), hidden_folders=hidden))
    assert "which is hidden from programs" in message


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount on the machine")
@pytest.mark.parametrize("mounted", ["state", "state/secrets"])
def test_a_file_system_does_not_show_a_hidden_folder_mounted_below_it(mounted, world):
    shared = world.folder("shared")
    place = world.folder("shared/deep/place")
    world.folder("state/secrets")
    kernel.mount(str(world.base / mounted), str(place), flags=kernel.MS_BIND)
    try:
        bind = Bind(source=str(shared), below="deep", target=TARGET)
        message = refusal(world, world.sandbox(binds=(bind,), hidden_folders=(str(world.base / "state"),)))
        assert "which is hidden from programs" in message
        require = replace(CHANNEL, file_system_path=str(shared))
        with pytest.raises(WireError, match=f"is mounted at {place}"):
            require_folder(require, home=world.base / "state")
    finally:
        kernel.unmount(str(place), flags=kernel.MNT_DETACH)
    require_folder(require, home=world.base / "state")
    assert world.run(f"ls {TARGET}", sandbox=world.sandbox(binds=(bind,))) == "place\n"


@pytest.mark.parametrize("place", ["input", "input/data", "input/data/train"])
@pytest.mark.parametrize("is_overlay", [True, False])
def test_links_of_a_running_host_do_not_redirect_binds_of_a_second_host(place, is_overlay, world):
    """Rules run in a second host, made while the program runs, with the same /opt/ml."""
    channel, victim = world.folder("channel"), world.folder("victim")
    (channel / "file").write_text("of the job")
    sandbox = world.sandbox()
    program, listener = world.start(
        shell(
            f"mkdir -p {TARGET}; cd /opt/ml; mv {place} moved; mkdir -p $(dirname {place}); ln -s {victim} {place};"
            "echo linked; while [ ! -e /opt/ml/end ]; do sleep 0.05; done"
        ),
        sandbox=sandbox,
    )
    listener.wait_for("linked")
    bind = Bind(source=str(channel), target=TARGET, overlay=is_overlay, copied_otherwise=True)
    beside = world.sandbox(binds=(bind,))
    assert "symbolic link" in refusal(world, replace(beside, ml_folder=sandbox.ml_folder))
    assert os.listdir(victim) == []
    with open(f"{sandbox.ml_folder}/end", "w"):
        pass
    assert program.wait(DEADLINE_S).exits[0].exit_code == 0
