"""`sagemaker_xgboost_container` as scripts of XGBoost's image use it, with the real library, on one host and on two."""

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from needs import python_of

pytestmark = [pytest.mark.needs("xgboost"), pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[3]
COMPAT = ROOT / "src/clary/compat"
# The form of most public scripts of this image.
SCRIPT = """
import json, os, sys
import xgboost as xgb
from sagemaker_containers import entry_point
from sagemaker_xgboost_container import distributed
from sagemaker_xgboost_container.data_utils import get_dmatrix, get_size

def train(params, dtrain, evals, num_boost_round, model_dir, is_master):
    booster = xgb.train(params=params, dtrain=dtrain, evals=evals, num_boost_round=num_boost_round, verbose_eval=False)
    if is_master:
        booster.save_model(model_dir + "/xgboost-model.json")
    print("trained", dtrain.num_row(), is_master, flush=True)

folder, hosts, host = sys.argv[1], json.loads(os.environ["SM_HOSTS"]), os.environ["SM_CURRENT_HOST"]
dtrain = get_dmatrix(folder + "/train", "csv") if get_size(folder + "/train") > 0 else None
dval = get_dmatrix(os.environ.get("SM_CHANNEL_VALIDATION"), "csv")
evals = [(dtrain, "train")] if dval is None else [(dtrain, "train"), (dval, "validation")]
params = {"max_depth": 3, "objective": "binary:logistic", "nthread": 1}
args = dict(params=params, dtrain=dtrain, evals=evals, num_boost_round=4, model_dir=folder)
if len(hosts) > 1:
    entry_point._wait_hostname_resolution()
    distributed.rabit_run(exec_fun=train, args=args, include_in_training=(dtrain is not None), hosts=hosts,
                          current_host=host, update_rabit_args=True)
else:
    args["is_master"] = True
    train(**args)
print("ended", flush=True)
"""
ROWS = "".join(f"{number % 2},{number % 2 + number / 1000},{number % 7}\n" for number in range(100))


def start(folder, code, *, hosts=("algo-1",), host="algo-1", port=0):
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{COMPAT}:{ROOT / 'src'}",
        "SM_HOSTS": json.dumps(hosts),
        "SM_CURRENT_HOST": host,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(code)
    return subprocess.Popen(
        [str(python_of("xgboost")), str(folder / "train.py"), str(folder)],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder, code):
    process = start(folder, code)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return output


def run_on_two(folder, parts, code=SCRIPT):
    """Run a script on two hosts, each with its part of the rows; return exit codes and outputs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for name, rows in zip(("algo-1", "algo-2"), parts, strict=True):
        (folder / name / "train").mkdir(parents=True)
        if rows is not None:
            (folder / name / "train/rows.csv").write_text(rows)
        processes.append(start(folder / name, code, hosts=("algo-1", "algo-2"), host=name, port=port))
    try:
        outputs = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [process.returncode for process in processes], outputs


def test_a_script_of_the_image_trains_on_one_host(tmp_path):
    (tmp_path / "job/train").mkdir(parents=True)
    (tmp_path / "job/train/rows.csv").write_text(ROWS)
    assert run(tmp_path / "job", SCRIPT) == "trained 100 True\nended\n"
    assert (tmp_path / "job/xgboost-model.json").stat().st_size > 0


def test_two_hosts_train_one_model_on_the_rows_of_both(tmp_path):
    half = len(ROWS) // 2
    half = ROWS.index("\n", half) + 1
    codes, outputs = run_on_two(tmp_path, (ROWS[:half], ROWS[half:]))
    assert codes == [0, 0], outputs
    counts = [line.split()[1:] for output in outputs for line in output.splitlines() if line.startswith("trained")]
    assert sum(int(count) for count, _ in counts) == 100
    assert [is_master for _, is_master in counts] == ["True", "False"]
    assert [(tmp_path / name / "xgboost-model.json").exists() for name in ("algo-1", "algo-2")] == [True, False]
    model = json.loads((tmp_path / "algo-1/xgboost-model.json").read_text())
    tree = model["learner"]["gradient_booster"]["model"]["trees"][0]
    assert tree["sum_hessian"][0] == pytest.approx(25.0)  # a quarter for each of the 100 rows


def test_the_only_host_with_rows_trains_alone(tmp_path):
    codes, outputs = run_on_two(tmp_path, (None, ROWS))
    assert codes == [0, 0], outputs
    assert outputs[1].endswith("trained 100 True\nended\n")
    assert "trained" not in outputs[0]
    assert "ended" in outputs[0]


def test_without_rows_anywhere_all_hosts_say_so(tmp_path):
    codes, outputs = run_on_two(tmp_path, (None, None))
    assert codes == [1, 1]
    assert all("no host has training data" in output for output in outputs), outputs


def test_hosts_with_different_numbers_of_features_are_refused(tmp_path):
    codes, outputs = run_on_two(tmp_path, (ROWS, "1,2\n0,3\n"))
    assert codes == [1, 1]
    assert all("from 1 to 2 features" in output for output in outputs), outputs


def test_a_failure_of_the_training_ends_the_program_with_its_trace(tmp_path):
    code = SCRIPT.replace("    if is_master:", '    if is_master:\n        raise RuntimeError("my mistake")')
    codes, outputs = run_on_two(tmp_path, (ROWS, ROWS), code)
    assert codes[0] == 1
    assert "RuntimeError: my mistake" in outputs[0]
    assert "ended" not in outputs[0]


READ = "import sys\nfolder = sys.argv[1]\nfrom sagemaker_xgboost_container.data_utils import *\n"


@pytest.mark.parametrize(
    ("name", "text", "content_type", "more", "expected"),
    [
        ("a.csv", "1,2,3\n0,,5\n", "text/csv", "", "2 2 [1.0, 0.0] []"),
        ("a.csv", "1,0.5,3\n0,0.25,5\n", "csv", ", csv_weights=1", "2 1 [1.0, 0.0] [0.5, 0.25]"),
        ("a.svm", "1 0:2 3:4\n0 1:1\n", "libsvm", "", "2 4 [1.0, 0.0] []"),
        ("a.svm", "1 0:2 3:4\n0 1:1\n", "text/x-libsvm", ", 0, False, False", "2 4 [1.0, 0.0] []"),
    ],
)
def test_data_are_read_as_by_the_built_in_algorithm(tmp_path, name, text, content_type, more, expected):
    (tmp_path / name).write_text(text)
    code = READ + (
        f"for path in (folder + '/{name}', folder + '/d'):\n"
        f"    m = get_dmatrix(path, {content_type!r}{more})\n"
        "    print(m.num_row(), m.num_col(), m.get_label().tolist(), m.get_weight().tolist())\n"
        "print(get_size(folder + '/d'), get_size(folder + '/none'), get_size(None))\n"
        f"print(get_content_type({content_type!r}))"
    )
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / name).write_text(text)
    kind = "csv" if "csv" in content_type else "libsvm"
    assert run(tmp_path, code).splitlines() == [expected, expected, f"{len(text)} 0 0", kind]


def test_a_folder_without_data_gives_no_matrix(tmp_path):
    code = "print(get_dmatrix(folder + '/none', 'csv'), get_dmatrix(None, 'csv'))"
    assert run(tmp_path, READ + code) == "None None\n"


def test_pipes_and_parts_of_endpoints_are_refused_in_words(tmp_path):
    code = READ + (
        "import sagemaker_xgboost_container as package\nfrom sagemaker_xgboost_container import encoder\n"
        "for use in (lambda: get_dmatrix(folder, 'csv', is_pipe=True), lambda: encoder.csv_to_dmatrix('1'),\n"
        "            lambda: __import__('sagemaker_xgboost_container.checkpointing')):\n"
        "    try:\n        use()\n    except Exception as error:\n        print(type(error).__name__, error)\n"
    )
    pipe, endpoint, other = run(tmp_path, code).splitlines()
    assert "input mode Pipe" in pipe
    assert "AttributeError sagemaker_xgboost_container.encoder.csv_to_dmatrix belongs to endpoints" in endpoint
    assert "ImportError sagemaker_xgboost_container.checkpointing is a part of AWS's containers" in other
