"""Orders for a rehearsal: parsed like the command line, refused with messages, and formatted as a command again."""

import argparse

import pytest

from clary.base.errors import ContractError
from clary.cli import rehearse
from clary.control.rehearsal.orders import MAX_FAULTS, read_order

REQUEST = {"TrainingJobName": "fit", "ResourceConfig": {"InstanceCount": 2, "InstanceType": "local"}}
GIB = 1024**3


def read(asked, *, request=REQUEST, refusals=None, room=8 * GIB):
    return read_order(asked, request=request, refusals=refusals or {}, largest_disk_bytes=room, new_seed=77)


def fault(kind, text):
    return {"kind": kind, "text": text}


def test_faults_become_descriptions_and_arguments_that_the_command_parses():
    order = read(
        {
            "faults": [
                fault("reclaim", "step:120"),
                fault("partition", "algo-1:algo-2@20s+10s"),
                fault("slow", " algo-2@60s+30s:5mbit "),
                fault("disk-full", "algo-1@step:3"),
            ],
            "disk_size": "500MiB",
            "keep": True,
            "step_regex": "at ([0-9]+)",
        }
    )
    assert order.faults[0] == "reclaim at step 120"
    assert order.faults[1] == "partition algo-1 from algo-2 after 20 s for 10 s"
    parser = argparse.ArgumentParser()
    rehearse.add_parser(parser.add_subparsers())
    options = parser.parse_args(["rehearse", *order.arguments, "--suffix=ab", "--certificate=c.json", "--", "fit"])
    assert [str(made) for made in options.faults] == list(order.faults)
    assert (options.disk_size, options.keep, options.together) == (500 * 1024**2, True, False)
    assert (options.step_regex, options.suffix, options.job) == ("at ([0-9]+)", "ab", "fit")
    assert parser.parse_args(["rehearse", "fit"]).suffix is None, "then there is a new one"


def test_drawn_faults_equal_those_that_the_command_draws_from_the_same_seed():
    order = read({"random": 3, "seed": 7})
    assert order.arguments == ("--random=3", "--seed=7")
    assert len(order.faults) == 3
    assert all("of the twin's steps" in words for words in order.faults)
    assert read({"random": 3, "seed": 7}).faults == order.faults
    assert read({"random": 3}).seed == 77, "without a seed there is a new one, which is remembered"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (None, "expected a rehearsal with faults"),
        ({}, "the rehearsal has no fault"),
        ({"faults": []}, "the rehearsal has no fault"),
        ({"faults": "kill"}, "faults is a list of at most"),
        ({"faults": [fault("reclaim", "@5s")] * (MAX_FAULTS + 1)}, "faults is a list of at most"),
        ({"faults": ["kill"]}, "a fault has a kind"),
        ({"faults": [fault("explode", "algo-1@5s")]}, r"a fault has a kind \(reclaim, kill"),
        ({"faults": [fault("kill", 5)]}, "a fault has a kind"),
        ({"faults": [fault("kill", "algo-1 at noon")]}, "--kill: expected algo-2@180s"),
        ({"faults": [fault("kill", "algo-1@5s --keep")]}, "--kill: expected"),
        ({"faults": [fault("kill", "algo-3@5s")]}, "the job has no host algo-3; it has algo-1, algo-2"),
        ({"faults": [fault("slow", "algo-1@5s:1mbit")]}, "no network here"),
        ({"random": 99}, "random is a whole number from 0 to 16"),
        ({"random": True}, "random is a whole number"),
        ({"random": 1, "seed": "x"}, "seed is a whole number"),
        ({"random": 1, "together": True}, "the twin has to run first"),
        ({"faults": [fault("disk-full", "algo-1@5s")], "disk_size": "a lot"}, "--disk-size: expected"),
        ({"faults": [fault("disk-full", "algo-1@5s")], "disk_size": "9GiB"}, "--disk-size: 1 disk of 9 GiB"),
        ({"faults": [fault("reclaim", "@5s")], "step_regex": "("}, "is not a regular expression"),
        ({"faults": [fault("reclaim", "@5s")], "loss_regex": "x"}, "has no group"),
        ({"faults": [fault("reclaim", "@5s")], "loss_regex": "(\ud800)"}, "loss_regex is a text"),
        ({"faults": [fault("reclaim", "@5s")], "loss_regex": "(x)" * 500}, "at most 500 characters"),
    ],
)
def test_an_impossible_order_is_refused_with_a_message(asked, why):
    with pytest.raises(ContractError, match=why):
        read(asked, refusals={"slow": "no network here"})


def test_twin_and_rehearsal_at_the_same_time_need_room_for_two_disks():
    asked = {"faults": [fault("disk-full", "algo-1@5s")], "disk_size": "5GiB"}
    assert read(asked).arguments[-1] == "--disk-size=5GiB"
    with pytest.raises(ContractError, match="2 disks of 5 GiB"):
        read({**asked, "together": True})


def test_a_job_of_one_host_has_no_network_to_cut():
    request = {**REQUEST, "ResourceConfig": {"InstanceCount": 1}}
    with pytest.raises(ContractError, match="a job of one host has no network between hosts"):
        read({"faults": [fault("partition", "algo-1@5s")]}, request=request)


def test_a_seed_that_chooses_nothing_is_told_to_have_no_effect(capsys):
    parser = argparse.ArgumentParser()
    rehearse.add_parser(parser.add_subparsers())
    options = parser.parse_args(["rehearse", "fit", "--reclaim", "step:120", "--seed", "7", "--json"])
    assert len(rehearse._plan(options, ["algo-1"], {})) == 1
    assert "--seed has no effect without --random" in capsys.readouterr().err
