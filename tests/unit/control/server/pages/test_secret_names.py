"""Values that are hidden from a browser because their name, flag or address looks like a secret."""

import pytest

from clary.control.server.pages.secret_names import hide_secrets, is_secret


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "password",
        "DB_PASSWD",
        "hf_token",
        "WANDB_API_KEY",
        "GoogleCredentials",
        "apikey",
        "KEY",
        "private-key",
        "tokenizer_auth_token",
        "my.secret.name",
    ],
)
def test_names_that_look_secret_are_recognised(name):
    assert is_secret(name, "abc123xyz")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", "2048"),
        ("num_key_value_heads", '"8"'),
        ("tokenizer", "bert-base"),
        ("tokenizer_name", '"gpt2"'),
        ("tokenization", "fast"),
        ("use_token_type_ids", "true"),
        ("learning_rate", "0.1"),
        ("key_dim", "1e-3"),
        ("epochs", "secret"),
        ("token", ""),
    ],
)
def test_ordinary_hyperparameters_are_not_mistaken_for_secrets(name, value):
    assert not is_secret(name, value)


@pytest.mark.parametrize("name", ["password", "my_secret", "credential"])
def test_a_numeric_password_is_a_secret_too(name):
    assert is_secret(name, "1234")


def test_secrets_of_a_request_are_hidden_and_everything_else_stays():
    sent = {
        "TrainingJobName": "a-key",
        "HyperParameters": {"lr": "0.1", "api_key": "abc"},
        "Environment": {"HF_TOKEN": "hf_abc", "MODE": "x", "DATABASE": "postgres://me:pass@host/db"},
        "AlgorithmSpecification": {
            "ContainerArguments": ["--token", "abc", "--password=def", "--lr", "0.1", "--max-tokens", "5", "plain"],
            "TrainingImage": "image:1",
        },
        "OutputDataConfig": {"KmsKeyId": "alias/key", "S3OutputPath": "s3://bucket/key"},
        "DebugRuleConfigurations": [{"RuleParameters": {"secret_name": "x", "patience": "5"}}],
        "StoppingCondition": {"MaxRuntimeInSeconds": 5},
    }
    assert hide_secrets(sent) == {
        "TrainingJobName": "a-key",
        "HyperParameters": {"lr": "0.1", "api_key": "(hidden)"},
        "Environment": {"HF_TOKEN": "(hidden)", "MODE": "x", "DATABASE": "postgres://me:(hidden)@host/db"},
        "AlgorithmSpecification": {
            "ContainerArguments": [
                "--token",
                "(hidden)",
                "--password=(hidden)",
                "--lr",
                "0.1",
                "--max-tokens",
                "5",
                "plain",
            ],
            "TrainingImage": "image:1",
        },
        "OutputDataConfig": {"KmsKeyId": "alias/key", "S3OutputPath": "s3://bucket/key"},
        "DebugRuleConfigurations": [{"RuleParameters": {"secret_name": "(hidden)", "patience": "5"}}],
        "StoppingCondition": {"MaxRuntimeInSeconds": 5},
    }
    assert sent["HyperParameters"]["api_key"] == "abc"


def test_a_flag_before_another_flag_hides_no_value():
    assert hide_secrets(["--use-token", "--lr", "0.1"]) == ["--use-token", "--lr", "0.1"]


def test_secrets_in_the_command_line_of_a_dumped_process_are_hidden():
    dump = {"dumps": {"algo-1": {"processes": [{"command": "python train.py --api_key abc --lr 0.1  --password=x y"}]}}}
    shown = hide_secrets(dump)["dumps"]["algo-1"]["processes"][0]["command"]
    assert shown == "python train.py --api_key (hidden) --lr 0.1  --password=(hidden) y"
