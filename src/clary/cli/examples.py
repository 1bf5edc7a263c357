"""Examples of every command, printed at the end of its help: the arguments after `clary`, and their effect.

Where: `main` adds them to the parsers. A test parses every line, and checks that every command has an example.
"""

from __future__ import annotations

from collections.abc import Mapping

Examples = tuple[tuple[str, str], ...]

EXAMPLES: Mapping[str, Examples] = {
    "": (
        ("up", "start the service"),
        ("jobs --status Queued", "list jobs that wait, with their places in the queue"),
        ("describe my-job --why", "say why a job failed and what to do"),
    ),
    "up": (("up", "start the service in the background"), ("up --foreground", "stay, and log to the terminal")),
    "env": (
        ("env", 'print variables for clients: eval "$(clary env)"'),
        ("env --profile my", "the same, and make the AWS profile `my` lead to the service"),
        ("env --json", "the variables as JSON"),
        ("env --shell fish", "for fish: clary env | source; for csh: eval `clary env --shell csh`"),
    ),
    "console": (("console", "print a link that signs in to the console once"),),
    "jobs": (
        ("jobs", "list the newest 20"),
        ("jobs --status Failed -n 100", "list failed jobs"),
        ("jobs --names --status Queued", "print names alone, for other commands"),
    ),
    "top": (("top", "watch jobs and hosts"), ("top --once", "print one table and end")),
    "describe": (
        ("describe my-job", "say all that is known of a job"),
        ("describe my-job --why", "say what failed first, where in the program, and what to do, or why it waits"),
    ),
    "logs": (
        ("logs my-job --follow", "print the log as it grows"),
        ("logs my-job --rank 3 --since 10m --grep loss", "lines of one rank, of the last ten minutes, with a word"),
    ),
    "metrics": (("metrics my-job", "show what its hosts measure: processors, memory, network, GPUs"),),
    "stragglers": (("stragglers my-job", "say which rank the others wait for"),),
    "dump": (("dump my-job", "print stacks of all processes, and who stands out"),),
    "profile": (("profile my-job", "say where the time of a few steps goes, on every rank"),),
    "profile-report": (("profile-report my-job", "print what the profiler's rules say"),),
    "checkpoints": (
        ("checkpoints my-job", "list sets of checkpoints in S3"),
        ("checkpoints verify my-job", "read every file of the newest set of each host"),
    ),
    "tuning": (
        ("tuning", "list tuning jobs"),
        ("tuning my-tuning", "show its best trial, what matters, and a table of trials"),
        ("tuning my-tuning --follow", "the same until it ends"),
    ),
    "wait": (
        ("wait my-job", "wait for the end; exit code 0 if it has completed"),
        ("wait my-job --for Running --timeout 600", "wait until the program runs, ten minutes at most"),
    ),
    "stop": (("stop my-job", "end a job; its results are kept"), ("stop my-job --wait 60", "and wait for the end")),
    "rerun": (
        ("rerun my-job", "create the job once more, under a new name"),
        ("rerun my-job -p lr=0.01 --instance-count 2", "with another hyperparameter, on two hosts"),
        ("rerun my-job --dry-run", "print the request and create nothing"),
    ),
    "cp": (
        ("cp my-job:model .", "copy model.tar.gz here"),
        ("cp my-job:output results -x", "unpack output.tar.gz into the folder results"),
        ("cp my-job:logs my-logs", "write the whole log, a file for each host"),
    ),
    "delete": (
        ("delete my-job", "forget a job that has ended, with its logs"),
        ("delete my-job other-job --stop", "stop them first if they still run"),
    ),
    "plan": (("plan my-job", "print the launch plan that a job's agents received"),),
    "run": (("run --cuda-on-cpu torchrun train.py", "run a program here, with CUDA meaning the CPU"),),
    "capacity": (("capacity", "list the nodes that hosts can come from"),),
    "hosts": (
        ("hosts", "list boxes, with their states and what runs there"),
        ("hosts add ml@box1 ml@box2", "install the daemon on two boxes over SSH"),
    ),
    "hosts add": (
        ("hosts add ml@box1 ml@box2", "install the daemon on two boxes, or repair it"),
        ("hosts add ml@10.0.0.5 --name gpu1 --scratch /data --python /opt/py311/bin/python", "with choices"),
        ("hosts add ml@box1 --ssh-option Port=2222", "through another port"),
    ),
    "hosts drain": (("hosts drain box2", "give box2 no new host; its jobs get a notice"),),
    "hosts resume": (("hosts resume box2", "take box2 into use again"),),
    "hosts remove": (
        ("hosts remove box2", "end the hosts on box2, and remove the daemon"),
        ("hosts remove box2 --force", "forget box2, which does not answer"),
    ),
    "hosts token": (("hosts token --minutes 10", "print a token for clary join that expires in ten minutes"),),
    "join": (("join https://head:4571 --token-file token", "make this machine a box of that service"),),
    "pools": (("pools", "list warm pools"),),
    "pools end": (("pools end my-job", "release the hosts that are kept after a job"),),
    "spot": (("spot", "say how much spot capacity there is, and who holds it"),),
    "spot status": (("spot status", "say how much spot capacity there is, and who holds it"),),
    "spot capacity": (
        ("spot capacity 2", "set the capacity to two hosts"),
        ("spot capacity auto", "by the schedule again"),
    ),
    "spot reclaim": (("spot reclaim my-job --grace 30", "take a job's capacity away, 30 s after SIGTERM"),),
    "rehearse": (
        ("rehearse my-job --reclaim step:20", "take spot capacity back at step 20"),
        ("rehearse my-job --kill-rank 1@step:20", "kill a rank at step 20, and certify how the job resumes"),
    ),
    "doctor": (("doctor", "check this machine and the service"), ("doctor my-job", "check the hosts of a job")),
    "quarantine": (("quarantine", "list records that cannot be read"),),
    "quarantine list": (("quarantine list", "list records that cannot be read"),),
    "quarantine show": (("quarantine show 1", "print the bytes of a record"),),
    "quarantine release": (("quarantine release 1", "read a record again, after it was mended"),),
    "quarantine drop": (("quarantine drop 1", "delete a record"),),
    "backup": (("backup", "list backups of the database"),),
    "backup list": (("backup list --json", "list backups of the database as JSON"),),
    "backup make": (("backup make", "make a backup now"),),
    "backup restore": (("backup restore", "replace the database by the newest backup"),),
    "environments": (
        ("environments", "list the Python environments that stand for images"),
        ("environments add pytorch:2.8-py312", "make one like an image of AWS's"),
    ),
    "environments list": (("environments list --json", "list them as JSON"),),
    "environments add": (
        ("environments add pytorch:2.8-py312", "make one like an image of AWS's"),
        ("environments add pytorch:2.8-py312 --with transformers", "and install this into it, too"),
    ),
    "environments remove": (("environments remove pytorch-2.8-py312", "remove one, as the list names it"),),
    "context": (
        ("context", "list services that commands can talk to"),
        ("context use office", "talk to this one from now on"),
        ("--context local jobs", "list this machine's jobs, whatever is chosen"),
    ),
    "context list": (("context list --json", "list contexts as JSON"),),
    "context use": (("context use office", "talk to this one from now on"),),
    "context add": (
        ("context add office office.json --url https://gpu1:4571 --ca-file ca.pem", "name a service elsewhere"),
    ),
    "context remove": (("context remove office", "forget it, with its keys"),),
    "context export": (("context export --url https://gpu1:4571", "print address and keys, for a machine elsewhere"),),
    "completion": (
        ("completion bash", "for bash: source <(clary completion bash)"),
        ("completion fish", "for fish: clary completion fish | source"),
    ),
    "restart": (
        ("restart", "take over changed settings or a new release; jobs run on"),
        ("restart --json", "the same; print which jobs go on"),
    ),
    "down": (("down", "stop the running jobs, the service and what it started"),),
}
