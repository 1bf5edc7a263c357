"""Package indexes in configuration files whose members have other types than uv expects."""

import pytest

from clary.control.egress.package_indexes import index_entries

URL = 'index-url = "http://uv.lan:8080/simple"'


@pytest.mark.parametrize(
    "text",
    [
        f"{URL}\nindex = 5",
        f"{URL}\nindex = true",
        f'{URL}\nindex = "x"',
        f"{URL}\nindex = [5]",
        f"{URL}\npip = 5",
        f"{URL}\nextra-index-url = 5",
        f"pip = [5]\n{URL}",
        f"[pip]\n{URL}\nindex = 5",
        f"{URL}\n[index]\nurl = 5",
    ],
)
def test_a_member_of_another_type_in_uvs_file_names_no_index(tmp_path, text):
    file = tmp_path / "uv.toml"
    file.write_text(text)
    environ = {"HOME": str(tmp_path), "UV_CONFIG_FILE": str(file)}
    assert "uv.lan:8080" in {str(entry) for entry in index_entries(environ)}
