"""`python -m clary.control.server`: its message and its exit code when it cannot start."""

import pytest

from clary.control.server import __main__ as server


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"CLARY_PORT": "many"}, "clary: CLARY_PORT: setting port expects int, got 'many' (expected a whole number)"),
        (
            {"CLARY_S3_ENDPOINT_URL": "http://127.0.0.1:1", "CLARY_S3_SECRET_ACCESS_KEY": "hush"},
            "clary: s3_endpoint_url is set, but s3_access_key_id or s3_secret_access_key is not",
        ),
        (
            {"CLARY_PRICES_FILE": "/nowhere/prices.json"},
            "clary: /nowhere/prices.json: cannot be read: No such file or directory (setting prices_file)",
        ),
    ],
)
def test_a_service_that_can_not_start_gives_the_reason_in_one_line(tmp_path, monkeypatch, capsys, variables, says):
    for name, value in {"CLARY_HOME": str(tmp_path), "CLARY_PORT": "0", "CLARY_TLS_PORT": "0", **variables}.items():
        monkeypatch.setenv(name, value)
    assert server.main() == 1
    assert capsys.readouterr().err == says + "\n"
    assert not (tmp_path / "run" / "service.json").exists()


@pytest.mark.parametrize("flags", [[], ["--new-keys"]])
def test_a_service_without_its_keys_starts_only_with_the_flag_for_new_keys(tmp_path, monkeypatch, capsys, flags):
    for name, value in {"CLARY_HOME": str(tmp_path), "CLARY_PORT": "0", "CLARY_TLS_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(
        "CLARY_S3_ENDPOINT_URL", "http://127.0.0.1:1"
    )  # with its keys, the service fails at this address instead
    monkeypatch.setattr("sys.argv", ["server", *flags])
    (tmp_path / "clary.db").touch()
    assert server.main() == 1
    said = capsys.readouterr().err
    assert ("root.json are missing" in said) == (not flags)
    assert (tmp_path / "secrets" / "root.json").exists() == bool(flags)
