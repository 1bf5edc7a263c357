"""The daemon's single file: reproducible, with all modules that it imports and no other module of Clary."""

import ast
import io
import zipfile

from clary.agent.node.packing import digest_of, pack_node


def contents():
    with zipfile.ZipFile(io.BytesIO(pack_node())) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_the_same_sources_give_the_same_file():
    assert pack_node() == pack_node()
    assert len(digest_of(pack_node())) == 64
    assert len(pack_node()) < 100_000


def test_every_module_that_is_imported_is_there_or_of_the_standard_library():
    import sys

    found = contents()
    for name, text in found.items():
        for node in ast.walk(ast.parse(text)):
            modules = []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            for module in modules:
                root = module.partition(".")[0]
                if root == "clary":
                    path = module.replace(".", "/")
                    assert f"{path}.py" in found or f"{path}/__init__.py" in found, (name, module)
                else:
                    assert root in sys.stdlib_module_names, (name, module)


def test_every_module_compiles_with_the_oldest_python():
    for name, text in contents().items():
        ast.parse(text, name, feature_version=(3, 10))
