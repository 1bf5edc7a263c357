"""Responses of the service for the console's pages that a real run would take hours or several machines to produce.

`text` is used wherever a text comes from a program or a person.
"""


def rehearsals_answer(job, text):
    """Return the page of a job's rehearsals: one that failed, with every entry that a certificate can have."""
    check = {"num_compared": 9, "num_equal": 3, "noise": 0, "largest": 0.5, "parts_at": text, "there": text}
    certificate = {
        "verdict": "FAIL",
        "reason": f"the loss parts {text}",
        "advice": text,
        "strikes": [
            {"words": text, "at_s": None, "note": text},
            {"words": "kill algo-1", "at_s": 61.5, "note": ""},
        ],
        "interruptions": [
            {
                "attempt": 1,
                "why": text,
                "last_step": text,
                "first_step": "7",
                "lost_steps": 3,
                "restored_files": 2,
            }
        ],
        "steps_lost": 3,
        "seconds_lost": -4.5,
        "redone_s": 12.0,
        "samples": {
            "is_known": True,
            "num_twice": 4,
            "num_never": 2,
            "examples_twice": [text],
            "examples_never": ["3"],
            "words": text,
            "num_compared": 64,
        },
        "losses": {**check, "twin_there": text},
        "metrics": {text: [0.5, None], "constructor": [1, 2]},
        "curves": {
            "steps": True,
            "twin": [[step, 1 / step] for step in range(1, 40)],
            "rehearsal": [[step, 1 / step + (step > 20) * 0.03] for step in range(1, 40)],
            "undone": [[[step, 1 / step] for step in range(15, 21)]],
            "resumes": [15],
        },
    }
    facts = {"status": "Failed", "secondary_status": "Failed", "state": "Failed", "attempt": 2, "failure_reason": text}
    brief = {
        "number": 5,
        "state": "certified",
        "why": "",
        "verdict": "FAIL",
        "reason": text,
        "num_faults": 2,
        "started_at": "2026-01-02T03:04:05+00:00",
        "ended_at": "2026-01-02T03:14:05+00:00",
    }
    whole = {
        **brief,
        "faults": [text],
        "seed": None,
        "command": f"clary rehearse '{text}'",
        "jobs": {"twin": {**facts, "name": text}, "rehearsal": {**facts, "name": "x"}},
        "lines": [text, "struck"],
        "certificate": certificate,
    }
    return {"job": job, "rehearsals": [brief], "rehearsal": whole}


def profile_answer(job, text):
    """Return the page of a profile of three ranks: one is late to collectives, and the third was lost."""

    def rank(number, **changes):
        strip = ("c" * 20 + "x" * (10 + 30 * (1 - number)) + "d" * 6 + "." * (24 - 10 * (1 - number))) * 4
        return {
            "rank": number,
            "host": f"algo-{number + 1}",
            "state": "done",
            "words": text if number else "",
            "num_steps": 4,
            "first_step": 154,
            "window_ms": 33.2,
            "begins_ms": 0.8 * number,
            "bounds_ms": [0, 8.1, 16.4, 24.9, 33.2],
            "step_ms": 8.3,
            "longest_step_ms": 8.5,
            "compute_share": 0.33,
            "communication_share": 0.6,
            "exposed_communication_share": 0.17 + 0.33 * (1 - number),
            "data_wait_share": 0.1,
            "rest_share": 0.4 - 0.33 * (1 - number),
            "num_collectives": 10,
            "on_accelerator": False,
            "strip": strip,
            "trace": f"rank-{number}.trace.json.gz",
            "top": [
                {"name": f"gloo:all_reduce {text}", "count": 20, "self_ms": 15.4, "share": 0.46},
                {"name": "aten::mm", "count": 110, "self_ms": 4.26, "share": 0.1},
                {"name": "aten::addmm", "count": 60, "self_ms": 2.37, "share": 0.05},
            ],
            **changes,
        }

    greatest = [{"step": 155, "name": f"c10d::allreduce_ {text}", "skew_ms": 8.9, "last": 1}]
    summary = {
        "ranks": [rank(0), rank(1), {"rank": 2, "host": text, "state": "lost", "words": f"ended {text}"}],
        "errors": [f"algo-4 has not answered {text}"],
        "clocks": {"method": "by the ends of collectives", "spread_us": 412.0},
        "skew": {
            "num_collectives": 10,
            "median_ms": 2.7,
            "greatest_ms": 8.9,
            "last": {"0": 0, "1": 10},
            "mean_behind_ms": {"0": 0, "1": 3.1},
            "greatest": greatest,
        },
        "merged": "merged.trace.json.gz",
    }
    brief = {"number": 7, "attempt": 1, "reason": text, "asked_at": "2026-01-02T03:04:05+00:00"}
    taken = {**brief, "num_steps": 4, "duration_s": 2.0, "is_over": True}
    return {
        **brief,
        "job": job,
        "numbers": [7, 6],
        "profiles": [taken, {**taken, "number": 6}],
        "hosts": ["algo-1", "algo-2"],
        "is_over": True,
        "ended": "",
        "missing": [],
        "states": [],
        "errors": [],
        "summary": summary,
    }


def tuning_answer(name, text, *, is_running=False):
    """Return the page of a tuning job of two definitions: of 40 trials some failed, one was stopped, some run."""

    def trial(number):
        lr = 10 ** -(1 + (number * 7) % 40 / 10)
        value = 0.9 - ((number * 7) % 40 - 15) ** 2 / 1200
        is_known = number % 9 and not (is_running and number > 36)
        state = "Completed" if is_known else "Failed" if number % 9 == 0 else "Running"
        return {
            "number": number,
            "job": f"{name}-{number:03d}-0000abcd",
            "definition": "small" if number % 4 else "large",
            "status": state if state != "Running" else "InProgress",
            "state": state,
            "value": value if is_known else None,
            "parameters": {"lr": repr(lr), "layers": str(1 + number % 6), "how": text if number % 3 else "plain"},
            "created_at": f"2026-01-02T03:{number:02d}:00+00:00",
            "started_at": f"2026-01-02T03:{number:02d}:05+00:00",
            "ended_at": None if state == "Running" else f"2026-01-02T03:{number:02d}:45+00:00",
            "stop_reason": f"early stopping: {text}" if number == 12 else "",
            "failure_reason": f"AlgorithmError: {text}" if state == "Failed" else "",
            "curve": [value / 2, value * 0.8, value] if is_known or state == "Running" else [],
        }

    trials = [trial(number) for number in range(1, 41)]
    known = [one for one in trials if one["value"] is not None]
    best = max(known, key=lambda one: one["value"])
    at_ms = 1_767_323_045_000  # end of an imaginary trial 0
    course, greatest = [], 0.0
    for one in known:
        greatest = max(greatest, one["value"])
        course.append([one["number"], at_ms + 60_000 * one["number"], greatest])
    ranges = [
        {"name": "lr", "kind": "continuous", "least": 1e-5, "greatest": 0.1, "scaling": "Logarithmic"},
        {"name": "layers", "kind": "integer", "least": 1, "greatest": 6, "scaling": "Linear"},
        {"name": "how", "kind": "categorical", "values": ["plain", text]},
    ]
    return {
        "name": name,
        "arn": f"arn:aws:sagemaker:us-west-2:1:hyper-parameter-tuning-job/{name}",
        "status": "InProgress" if is_running else "Completed",
        "strategy": "Bayesian",
        "objective": {"metric": "accuracy", "is_maximized": True},
        "counters": {
            "Completed": len(known),
            "InProgress": 3 * is_running,
            "NonRetryableError": 4,
            "RetryableError": 0,
            "Stopped": 0,
        },
        "num_trials": 40,
        "max_trials": 60,
        "best": {key: best[key] for key in ("number", "job", "value", "parameters")},
        "created_at": "2026-01-02T03:00:00+00:00",
        "ended_at": None if is_running else "2026-01-02T03:41:00+00:00",
        "end_reason": "" if is_running else f"it ended {text}",
        "ends": ["after 60 training jobs", f"when accuracy reaches {text}"],
        "limits": {},
        "stops_early": True,
        "resources": None,
        "seed": 7,
        "parents": [text],
        "converged_at": None,
        "definitions": [
            {"name": part, "hyperparameters": {"epochs": "3", "note": text}, "ranges": ranges}
            for part in ("small", "large")
        ],
        "trials": trials,
        "best_so_far": course,
        "importance": {"lr": 0.7, text: 0.3},
        "importance_why": "",
    }
