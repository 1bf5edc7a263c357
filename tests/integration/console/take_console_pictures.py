"""Script that takes the pictures of docs/pictures again, with its own service, jobs and Chromium.

    .venv/bin/python tests/integration/console/take_console_pictures.py [FOLDER]

Where: run by hand, after a change that the pictures would contradict. It takes about three minutes and needs what the
browser tests need (`make setup`); look at each picture before it is committed.
"""

import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/integration"), str(ROOT / "tests/integration/observation")]

from boto3_clients import Clients, job_request, wait  # noqa: E402
from console_browser import BELOW_THE_HEAD, PHONE, Browser, Console, open_job  # noqa: E402 - found by the line above
from drawing_job import DRAWS  # noqa: E402
from playwright.sync_api import expect, sync_playwright  # noqa: E402
from program_jobs import archive_of, put  # noqa: E402
from running_service import start_service  # noqa: E402

DESKTOP = {"width": 1120, "height": 640}
LEARNS = (
    'awk \'BEGIN{srand(%d);for(i=1;i<=%d;i++){printf "step %%d/%d loss=%%.4f accuracy=%%.4f\\n",'
    'i,0.8+1.6*exp(-i/500)+rand()*.06,0.66-0.5*exp(-i/700)+rand()*.03;fflush();system("sleep %s")}}\''
)
BREAKS = "sleep 2; python3 -c 'raise FileNotFoundError(\"/opt/ml/input/data/train/vocab.json is not there\")'"
METRICS = [{"Name": "loss", "Regex": "loss=([0-9.]+)"}, {"Name": "accuracy", "Regex": "accuracy=([0-9.]+)"}]
LONG_RUN = "llama-finetune"
TUNING = "mnist-search"
TUNED = """
import json, math, time
given = json.load(open("/opt/ml/input/config/hyperparameters.json"))
lr, layers = float(given["lr"]), int(given["layers"])
best = 0.97 - 0.06 * (math.log10(lr) + 2.5) ** 2 - 0.01 * abs(layers - 4) - 0.03 * (given["optimizer"] == "sgd")
for epoch in range(1, 9):
    print(f"accuracy={max(0.1, best) * (1 - math.exp(-epoch / 2)):.4f}", flush=True)
    time.sleep(0.1)
"""
LOOKED_AT_S = 20  # seconds of the long run before the pictures, so that its curves have a shape


def main() -> None:
    """Start a service and its jobs, take the pictures, and stop the service."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/pictures"
    with tempfile.TemporaryDirectory() as home:
        service = start_service(Path(home) / "state")
        try:
            _run_jobs(Clients(service))
            with sync_playwright() as playwright:
                browser = Browser(playwright)
                _take(Console(browser, service), folder)
                browser.close()
        finally:
            service.clary("down")


def _run_jobs(aws: Clients) -> None:
    def start(name: str, command: str, num_hosts: int = 1) -> str:
        request = job_request(name, command)
        request["AlgorithmSpecification"]["MetricDefinitions"] = METRICS
        request["ResourceConfig"]["InstanceCount"] = num_hosts
        aws.sagemaker.create_training_job(**request)
        return name

    _tune(aws)
    for number in range(2):
        wait(aws, start(f"cifar-resnet-lr-0-{number + 1}", LEARNS % (number, 60, 60, 0.05)))
    wait(aws, start("mnist-pictures", DRAWS))
    wait(aws, start("tokenizer-broken", BREAKS, 2))
    start(LONG_RUN, LEARNS % (7, 900, 900, 0.1), 2)
    wait(aws, LONG_RUN, until=("Training",))
    wait(aws, start("smoke-test", "echo loss=0.5"))
    start("llama-evaluate", "true", 8)
    wait(aws, "llama-evaluate", until=("Pending",))
    time.sleep(LOOKED_AT_S)


def _tune(aws: Clients) -> None:
    """Run a tuning job of 30 trials to its end."""
    job = job_request("x", "")
    source = put(aws, "code/search/sourcedir.tar.gz", archive_of({"train.py": TUNED}))
    specification = {key: value for key, value in job["AlgorithmSpecification"].items() if "Container" not in key}
    aws.sagemaker.create_hyper_parameter_tuning_job(
        HyperParameterTuningJobName=TUNING,
        HyperParameterTuningJobConfig={
            "Strategy": "Bayesian",
            "RandomSeed": 1,
            "ResourceLimits": {"MaxNumberOfTrainingJobs": 30, "MaxParallelTrainingJobs": 3},
            "HyperParameterTuningJobObjective": {"Type": "Maximize", "MetricName": "accuracy"},
            "ParameterRanges": {
                "ContinuousParameterRanges": [
                    {"Name": "lr", "MinValue": "0.00001", "MaxValue": "0.1", "ScalingType": "Logarithmic"},
                    {"Name": "dropout", "MinValue": "0", "MaxValue": "0.5"},
                ],
                "IntegerParameterRanges": [{"Name": "layers", "MinValue": "1", "MaxValue": "8"}],
                "CategoricalParameterRanges": [{"Name": "optimizer", "Values": ["sgd", "adam", "lamb"]}],
            },
        },
        TrainingJobDefinition={
            **{
                member: job[member] for member in ("RoleArn", "OutputDataConfig", "StoppingCondition", "ResourceConfig")
            },
            "AlgorithmSpecification": {**specification, "MetricDefinitions": METRICS},
            "StaticHyperParameters": {"sagemaker_program": "train.py", "sagemaker_submit_directory": source},
        },
    )
    while True:
        facts = aws.sagemaker.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=TUNING)
        if facts["HyperParameterTuningJobStatus"] not in ("InProgress", "Stopping"):
            return
        time.sleep(1)


def _take(console: Console, folder: Path) -> None:
    context = console.context(viewport=DESKTOP)
    page = context.new_page()

    def keep(name: str) -> None:
        page.wait_for_timeout(1500)  # until the animations of curves and colours have ended
        page.screenshot(path=str(folder / f"console-{name}.png"))
        print(f"took {folder}/console-{name}.png", flush=True)

    page.goto(f"{console.url}/console/jobs")
    expect(page.get_by_role("link", name="llama-evaluate")).to_be_visible()
    keep("jobs")
    page.set_viewport_size({"width": 1280, "height": 940})
    page.goto(f"{console.url}/console/tuning/{TUNING}")
    expect(page.get_by_role("meter", name="Importance of lr")).to_be_visible()
    page.locator("svg.axes").hover(position={"x": 60, "y": 90})
    keep("tuning")
    page.set_viewport_size(DESKTOP)
    open_job(page, console, "tokenizer-broken")
    expect(page.get_by_role("region", name="Where in the program")).to_be_visible()
    keep("failed")
    page.emulate_media(color_scheme="dark")
    open_job(page, console, LONG_RUN, "charts")
    plot = page.get_by_role("group", name="loss", exact=True).get_by_role("img")
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + 60)
    keep("charts")
    open_job(page, console, LONG_RUN, "logs")
    page.get_by_label("Search the log").fill("accuracy")
    expect(page.get_by_role("log")).to_contain_text("accuracy")
    keep("logs")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(PHONE)
    open_job(page, console, LONG_RUN)
    expect(page.get_by_role("region", name="Time and money")).to_be_visible()
    keep("phone")
    page.set_viewport_size({"width": 1280, "height": 820})
    open_job(page, console, "mnist-pictures", "charts")
    expect(page.get_by_role("img", name="samples/ring at step 1,050")).to_be_visible()
    page.get_by_role("heading", name="Histograms").evaluate(BELOW_THE_HEAD)
    keep("histograms")
    context.close()


if __name__ == "__main__":
    main()
