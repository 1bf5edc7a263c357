"""Folders and files of `/opt/ml`, compared with those of real containers."""

import dataclasses
import json
from pathlib import Path

from clary.agent.environments.config_files import config_documents, inside_tree, write_tree
from clary.contract.launch_plan import Channel, InputMode, Isolation
from clary.contract.ml_tree import OPT_ML, MlTree
from clary.testing.launch_plans import make_hosts, make_plan

# Copied from a real container in 2025.
REAL_RESOURCE_CONFIG = (
    '{"current_group_name": "homogeneousCluster", "current_host": "algo-1", "current_instance_type": "ml.c5.xlarge", '
    '"hosts": ["algo-1"], "instance_groups": [{"hosts": ["algo-1"], "instance_group_name": "homogeneousCluster", '
    '"instance_type": "ml.c5.xlarge"}], "network_interface_name": "eth0", "topology": null}'
)


def read(tree: MlTree, stem: str):
    return json.loads((tree.config / f"{stem}.json").read_text())


def test_resource_config_is_that_of_a_real_container(tmp_path: Path) -> None:
    plan = make_plan(hosts=make_hosts(instance_type="ml.c5.xlarge"))
    write_tree(plan, plan.hosts[0], MlTree(tmp_path))
    assert (MlTree(tmp_path).config / "resourceconfig.json").read_text() == REAL_RESOURCE_CONFIG


def test_hosts_are_sorted_as_text_and_groups_keep_their_order(tmp_path: Path) -> None:
    hosts = make_hosts(11)
    groups = ["b"] * 2 + ["a"] * 9
    hosts = tuple(dataclasses.replace(h, instance_group=g) for h, g in zip(hosts, groups, strict=True))
    plan = make_plan(hosts=hosts)
    write_tree(plan, plan.host("algo-11"), MlTree(tmp_path))
    document = read(MlTree(tmp_path), "resourceconfig")
    assert document["hosts"][:4] == ["algo-1", "algo-10", "algo-11", "algo-2"]
    assert document["current_group_name"] == "a"
    assert [group["instance_group_name"] for group in document["instance_groups"]] == ["b", "a"]
    assert document["instance_groups"][1]["hosts"][:3] == ["algo-10", "algo-11", "algo-3"]


def test_hyperparameters_are_written_byte_exact_in_both_dialects(tmp_path: Path) -> None:
    values = {"z": '"a\\nb"', "a": 'it\'s "raw"\n\t\u4e2d\U0001f600', "n": "1e3", "half": "\ud800", "e": ""}
    plan = make_plan(hyperparameters=values)
    write_tree(plan, plan.hosts[0], MlTree(tmp_path))
    document = read(MlTree(tmp_path), "hyperparameters")
    assert document == values
    assert list(document) == list(values)


def test_no_hyperparameters_are_an_empty_object(tmp_path: Path) -> None:
    plan = make_plan()
    write_tree(plan, plan.hosts[0], MlTree(tmp_path))
    assert read(MlTree(tmp_path), "hyperparameters") == {}


def test_input_data_config_has_the_channels_of_the_hosts_group(tmp_path: Path) -> None:
    channels = [
        Channel(name="train", s3_uri="s3://b/p", content_type="text/libsvm"),
        Channel(name="pipe", s3_uri="s3://b/q", input_mode=InputMode.PIPE, s3_data_distribution="ShardedByS3Key"),
        Channel(name="other", s3_uri="s3://b/r", instance_groups=("g2",)),
    ]
    plan = make_plan(channels=channels)
    tree = MlTree(tmp_path)
    write_tree(plan, plan.hosts[0], tree)
    assert read(tree, "inputdataconfig") == {
        "train": {
            "ContentType": "text/libsvm",
            "RecordWrapperType": "None",
            "S3DistributionType": "FullyReplicated",
            "TrainingInputMode": "File",
        },
        "pipe": {
            "RecordWrapperType": "None",
            "S3DistributionType": "ShardedByS3Key",
            "TrainingInputMode": "Pipe",
        },
    }
    assert tree.channel("train").is_dir()
    assert not tree.channel("other").exists()


def test_config_documents_get_local_paths_as_the_program_sees_them(tmp_path: Path) -> None:
    documents = {
        "debughookconfig": {"S3OutputPath": "s3://b/d"},
        "tensorboardoutputconfig": {"S3OutputPath": "s3://b/t"},
        "profilerconfig": {"S3OutputPath": "s3://b/p"},
        "checkpointconfig": {"S3Uri": "s3://b/c", "LocalPath": "/opt/ml/checkpoints/mine"},
    }
    plan = make_plan(config_documents=documents)
    write_tree(plan, plan.hosts[0], MlTree(tmp_path))
    local_paths = {stem: read(MlTree(tmp_path), stem)["LocalPath"] for stem in documents}
    assert local_paths == {
        "debughookconfig": "/opt/ml/output/tensors",
        "tensorboardoutputconfig": "/opt/ml/output/tensorboard",
        "profilerconfig": "/opt/ml/output/profiler",
        "checkpointconfig": "/opt/ml/checkpoints/mine",
    }
    plain = make_plan(config_documents=documents, isolation=Isolation.PROCESSES)
    relocated = config_documents(plain, inside_tree(plain, MlTree(tmp_path)))
    assert relocated["checkpointconfig"]["LocalPath"] == str(tmp_path / "checkpoints" / "mine")
    assert relocated["debughookconfig"]["LocalPath"] == str(tmp_path / "output" / "tensors")


def test_tree_has_every_folder_and_can_be_written_twice(tmp_path: Path) -> None:
    plan = make_plan()
    tree = MlTree(tmp_path)
    for _ in range(2):
        write_tree(plan, plan.hosts[0], tree)
    for folder in (tree.model, tree.output_data, tree.intermediate, tree.checkpoints, tree.code, tree.config):
        assert folder.is_dir()
    assert (tmp_path / ".clary" / "home").is_dir()
    assert (tmp_path / ".clary" / "errors").is_dir()
    assert inside_tree(plan, tree) == MlTree(OPT_ML)
