"""Which text of a program keeps its ranks out of an interpreter that has imported torch already."""

import time

import pytest

from clary.agent.zygote.clary_zygote import _MAX_READ_BYTES, _too_late

RUN = "import subprocess, sys\n"
INSTALLS = {
    "module pip": RUN + 'subprocess.check_call([sys.executable, "-m", "pip", "install", "torch==1.13.1"])\n',
    "several lines": RUN + "subprocess.run([\n    sys.executable, '-m',\n    'pip',\n    'install', 'numpy<2'])\n",
    "a shell": 'import os\nos.system("pip install -q numpy==1.26.4")\n',
    "pip3": 'import os\nos.system("pip3  install numpy")\n',
    "pip of a version": 'import os\nos.system("pip3.11 install numpy")\n',
    "options first": 'import os\nos.system("pip --no-cache-dir -q install numpy")\n',
    "a module in a shell": 'import os\nos.system(f"{sys.executable} -m pip install --upgrade torch")\n',
    "command and arguments": RUN + 'subprocess.call(["pip", "install", "torch"])\n',
    "a path": RUN + 'subprocess.call(["/opt/conda/bin/pip", "install", "torch"])\n',
    "uv": RUN + 'subprocess.call(["uv", "pip", "install", "torch"])\n',
    "uv in a shell": 'import os\nos.system("uv pip install torch")\n',
    "main": "import pip\npip.main(['install', 'torch'])\n",
    "inner main": "from pip._internal import main as install\ninstall(['install', 'torch'])\n",
    "main of pip": "from pip import main\nmain(['install', 'torch'])\n",
    "cli": "from pip._internal.cli.main import main\nmain(['install', 'torch'])\n",
    "runpy": "import runpy\nrunpy.run_module('pip', run_name='__main__')\n",
    "conda": 'import os\nos.system("conda install -y numpy=1.26")\n',
    "an option with a value": RUN + 'subprocess.call(["pip", "--log", "a.txt", "--proxy=-", "install", "torch"])\n',
    "60 options": f"x = 'pip {' '.join(f'--option{number}={number}' for number in range(60))} install torch'\n",
    "an installer as value": 'import os\nos.system("pip --log pip --proxy pip install torch")\n',
    "conda's arguments": RUN + 'subprocess.call(["conda", "install", "numpy"])\n',
}
OTHERS = {
    "no installation": "import torch\nprint(torch.__version__)\n",
    "a comment": "import torch\n# pip install torch\nx = 1  # first: pip install numpy\n",
    "other words": "pipeline = 'install'\npip = 3\nprint('install the pipes')\n",
    "two values": 'import os\nos.system("pip --log a b install torch")\n',
    "60 options of a model": f"x = {['--model', 'mamba', *(f'--option{number}={number}' for number in range(60))]}\n",
    "a list of packages": RUN + 'subprocess.run([sys.executable, "-m", "pip", "list"])\n',
}


@pytest.mark.parametrize("text", INSTALLS.values(), ids=INSTALLS)
def test_a_script_that_installs_packages_gets_a_new_interpreter(tmp_path, text):
    (tmp_path / "train.py").write_text("import os\n" + text)
    assert _too_late(str(tmp_path))


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_any_other_script_starts_in_the_interpreter_that_stands_ready(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    assert _too_late(str(tmp_path)) == ""


def test_an_installation_in_another_file_beside_the_script_counts_too(tmp_path):
    (tmp_path / "train.py").write_text("import preparing\n")
    (tmp_path / "preparing.py").write_text(INSTALLS["module pip"])
    assert "pip" in _too_late(str(tmp_path))


def test_a_variable_that_torch_has_read_counts_as_before(tmp_path):
    (tmp_path / "train.py").write_text('import os\nos.environ["OMP_NUM_THREADS"] = "1"  # before torch\n')
    assert "OMP_NUM_THREADS" in _too_late(str(tmp_path))


PARTS = [
    "pip ",
    "pip -a ",
    "pip --a=b ",
    "pip -a pip ",
    "-a=b ",
    "pip\n",
    "\n",
    "import ",
    "pip -a b,",
    "'",
    "__import__(",
    "#",
]


@pytest.mark.parametrize("begin", ["", "pip ", "import ", "mamba -a"])
@pytest.mark.parametrize("part", PARTS)
def test_no_text_of_a_program_takes_long_to_read(tmp_path, begin, part):
    (tmp_path / "train.py").write_text("x = 'pip'\n" + begin + part * (_MAX_READ_BYTES // len(part)))
    began_s = time.process_time()
    assert "install" not in _too_late(str(tmp_path))
    assert time.process_time() - began_s < 3
