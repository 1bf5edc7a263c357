"""`clary hosts` and `clary join` without boxes: messages, refusals, bounded output, fingerprints."""

import json
import sys

import pytest

from clary.base.errors import ClaryError
from clary.cli import hosts, join
from clary.cli.box_admission import checked_probe, fingerprint
from clary.cli.box_words import box_note, box_row, clock_ahead_s, clock_words, shape_words
from clary.cli.main import main
from clary.cli.remote_python import MAX_OUTPUT_BYTES, Place, run_bounded

FACTS = {"num_cpus": 8, "memory_bytes": 62 * 1024**3, "gpus": [], "isolation": "namespaces"}
BOX = FACTS | {
    "name": "box1",
    "state": "busy",
    "why": "",
    "daemon": "d",
    "runs": [{"job": "job-7", "host": "algo-1", "is_ending": False}],
}


class FakeService:
    """Returns pages, and records all messages."""

    def __init__(self, *pages, answers=None):
        self.pages, self.sent, self.answers = list(pages), [], answers or {}

    def get(self, path):
        assert path == "boxes"
        return self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]

    def post(self, path, body):
        self.sent.append((path, dict(body)))
        return self.answers.get(path, {})


def page(*boxes, waiting=()):
    return {"service_url": "https://head:4571", "ca_pem": "", "boxes": list(boxes), "waiting": list(waiting)}


def use(monkeypatch, *pages, **options):
    fake = FakeService(*pages, **options)
    monkeypatch.setattr(hosts, "connect", lambda: fake)
    monkeypatch.setattr(hosts, "POLL_S", 0.0)
    return fake


def test_a_box_is_described_in_one_line():
    assert shape_words(FACTS) == "8 CPUs, 62 GiB, no GPUs, namespaces"
    one = FACTS | {"num_cpus": 1, "gpus": ["GPU-1"], "isolation": "namespaces without root"}
    assert shape_words(one) == "1 CPU, 62 GiB, 1 GPU, namespaces without root"
    assert shape_words(FACTS | {"gpus": ["a", "b"]}) == "8 CPUs, 62 GiB, 2 GPUs, namespaces"
    assert box_row(BOX, "d") == ("box1", "busy", "8", "62 GiB", "0", "namespaces", "job-7 algo-1", "")
    ending = BOX | {"runs": [{"job": "job-7", "host": "algo-2", "is_ending": True}]}
    assert box_row(ending, "d")[6] == "job-7 algo-2 (ending)"
    assert box_note(BOX, "other").startswith("another version of the daemon")
    assert box_note(BOX | {"why": "not heard of"}, "other") == "not heard of"


@pytest.mark.parametrize(("told_s", "ahead_s"), [(105.0, 0.0), (100.0, 0.0), (110.0, 0.0), (113.0, 3.0), (95.0, -5.0)])
def test_the_time_that_a_slow_ssh_takes_is_no_offset_of_a_clock(told_s, ahead_s):
    assert clock_ahead_s(told_s, began_s=100.0, ended_s=110.0) == ahead_s


def test_a_clock_offset_is_shown():
    assert clock_words("box1", 1.9) == ""
    assert clock_words("box1", -7.2).startswith("box1: its clock is 7 s behind this machine's")
    assert clock_words("box1", 7.2).startswith("box1: its clock is 7 s ahead of this machine's")


def test_boxes_and_requests_to_join_are_listed(monkeypatch, capsys):
    use(monkeypatch, page(BOX, waiting=["job-8 waits for 1 box: box1 runs job-7"]))
    assert main(["hosts"]) == 0
    header, row, waits = capsys.readouterr().out.splitlines()
    assert header.split() == ["BOX", "STATE", "CPUS", "MEMORY", "GPUS", "ISOLATION", "RUNS"]
    assert row.startswith("box1  busy   8     62 GiB  0     namespaces  job-7 algo-1")
    assert waits == "job-8 waits for 1 box: box1 runs job-7"
    assert main(["hosts", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["boxes"] == [BOX]


@pytest.mark.parametrize(
    ("act", "words"), [("drain", "is drained: it gets no new host"), ("resume", "is in use again")]
)
def test_boxes_are_drained_and_resumed(monkeypatch, capsys, act, words):
    fake = use(monkeypatch, page(BOX, BOX | {"name": "box2"}))
    assert main(["hosts", act, "box1", "box2"]) == 0
    assert capsys.readouterr().out == f"box1 {words}\nbox2 {words}\n"
    assert fake.sent == [("boxes/box1/" + act, {}), ("boxes/box2/" + act, {})]


@pytest.mark.parametrize("act", ["drain", "resume", "remove"])
@pytest.mark.parametrize("wrong", ["box9", "../x"])
def test_a_wrong_name_among_several_costs_no_box_its_hosts(monkeypatch, capsys, act, wrong):
    fake = use(monkeypatch, page(BOX), page(BOX), page())
    assert main(["hosts", act, "box1", wrong]) == 3
    assert f"there is no box '{wrong}'" in capsys.readouterr().err
    assert fake.sent == []


def test_removal_waits_for_the_box_and_reports_one_that_does_not_answer(monkeypatch, capsys):
    leaving = BOX | {"state": "gone", "why": "ends what it runs"}
    use(monkeypatch, page(BOX), page(leaving), page(leaving), page())
    assert main(["hosts", "remove", "box1"]) == 0
    assert capsys.readouterr().out == "box1 is removed\n"
    silent = BOX | {"state": "gone", "why": "not heard of for 20 s; it goes when it answers"}
    fake = use(monkeypatch, page(silent))
    assert main(["hosts", "remove", "box1", "--force"]) == 1
    assert capsys.readouterr().out.startswith("box1 is removed once it answers: not heard of for 20 s")
    assert fake.sent == [("boxes/box1/remove", {"force": True})]


PROBE = {
    "facts": {"hostname": "box1", "user": "ml", **FACTS},
    "machine": "m" * 64,
    "time": 0.0,
    "why_no_folder": "",
    "why_no_service": "",
}


def add(monkeypatch, *answers, pages=()):
    """Add box1, whose machine gives these answers."""
    admission = {"token": "t", "service_url": "https://head:4571", "ca_pem": "c"}
    fake = use(monkeypatch, *(pages or [page()]), answers={"boxes": admission})
    left = list(answers)
    fake.asked = []

    def ask(place, verb, document):
        fake.asked.append((verb, dict(document)))
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(hosts, "ask_node", ask)
    return fake, main(["hosts", "add", "ml@box1"])


def test_a_box_is_added_once_its_daemon_has_connected(monkeypatch, capsys):
    ready = BOX | {"state": "ready", "was_heard": True, "daemon": "d" * 64, "restarts": "systemd"}
    early = ready | {"was_heard": False}
    fake, code = add(monkeypatch, PROBE, {"daemon": "d" * 64}, pages=[page(), page(early), page(ready)])
    assert code == 0
    told = capsys.readouterr()
    assert told.out == "box1   ready   8 CPUs, 62 GiB, no GPUs, namespaces\n"
    assert "its clock is" in told.err, "the probe's time was 1970"
    assert [verb for verb, _ in fake.asked] == ["probe", "install"]
    assert fake.asked[1][1]["token"] == "t"
    assert "token" not in fake.asked[0][1]


def test_a_box_is_added_even_if_its_driver_does_not_tell_its_gpus(monkeypatch, capsys):
    ready = BOX | {"state": "ready", "was_heard": True, "daemon": "d" * 64, "restarts": "systemd"}
    unknown = ready | {"state": "unknown", "gpus": None}
    pages = [page(), page(unknown), page(ready | {"gpus": ["GPU-1"]})]
    assert add(monkeypatch, PROBE, {"daemon": "d" * 64}, pages=pages)[1] == 0
    assert capsys.readouterr().out == "box1   ready   8 CPUs, 62 GiB, 1 GPU, namespaces\n"
    monkeypatch.setattr(hosts, "READY_LIMIT_S", 0.0)
    assert add(monkeypatch, PROBE, {"daemon": "d" * 64}, pages=[page(), page(unknown)])[1] == 0
    assert capsys.readouterr().out == "box1   unknown   8 CPUs, 62 GiB, GPUs not known yet, namespaces\n"


def test_a_new_box_that_can_not_be_installed_is_forgotten_and_a_known_one_stays(monkeypatch, capsys):
    fake, code = add(monkeypatch, PROBE, ClaryError("box1: no space"))
    assert code == 1
    assert "clary: box1: no space" in capsys.readouterr().err
    assert fake.sent[-1] == ("boxes/box1/remove", {"force": True})
    fake, code = add(monkeypatch, PROBE, ClaryError("box1: no space"), pages=[page(BOX)])
    assert code == 1
    assert [path for path, _ in fake.sent] == ["boxes"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"facts": None}, "its facts make no sense"),
        ({"facts": {"hostname": 7}}, "its facts make no sense"),
        ({"why_no_folder": "/home: read-only"}, "nothing can be installed there: /home: read-only"),
        ({"why_no_service": "timed out"}, "it does not reach the service at https://head:4571: timed out"),
        ({"why_no_service": "\x1b[2J"}, "https://head:4571: \\x1b[2J;"),
    ],
)
def test_a_machine_that_cannot_be_a_box_is_refused_with_the_reason(changes, words):
    with pytest.raises(ClaryError) as caught:
        checked_probe(PROBE | changes, "box1", "https://head:4571")
    assert words in caught.value.message


@pytest.mark.parametrize(
    "place",
    [
        Place(target="-oProxyCommand=x"),
        Place(target="ml@box1 true"),
        Place(target="ml@box1;true"),
        Place(target="box1", python="python3;true"),
        Place(target="box1", python="-c"),
        Place(target="box1", python="$(x)"),
        Place(target="box1", ssh_options=("nonsense",)),
        Place(target="box1", ssh_options=("-F=x",)),
        Place(target="box1", ssh_options=("Port=22\nProxyCommand=x",)),
    ],
)
def test_a_host_name_with_other_characters_is_refused(place):
    with pytest.raises(ClaryError, match="expected"):
        place.check()


@pytest.mark.parametrize("target", ["box1", "ml@box1", "ml@10.0.0.5", "my_user@my-box.example.com", "ml@fe80::1"])
def test_names_that_ssh_accepts_are_accepted(target):
    Place(target=target, python="/opt/py-3.11/bin/python3.11", ssh_options=("Port=2222", "ProxyJump jump")).check()


def test_ssh_is_called_without_questions_sharing_or_forwarding():
    command = Place(target="ml@box1", ssh_options=("Port=2222",))._command("probe")
    assert command[:2] == ["ssh", "-T"]
    for option in ("BatchMode=yes", "ControlMaster=no", "ForwardAgent=no", "ClearAllForwardings=yes", "Port=2222"):
        assert command[command.index(option) - 1] == "-o"
    assert command[-3:-1] == ["--", "ml@box1"]
    assert command[-1].startswith("python3 -I -S -c '")
    assert command[-1].endswith("' probe")
    assert command[-1].count("'") == 2
    assert not set(command[-1]) & set("$`\\!\n")


def run_python(code, given=b"", limit_s=20.0):
    return run_bounded([sys.executable, "-S", "-c", code], given, limit_s=limit_s)


def test_output_is_read_while_input_is_written():
    given = b"x" * (1 << 20)
    echo = (
        "import sys; data = sys.stdin.buffer.read(); sys.stdout.write(str(len(data))); sys.stderr.write('e'); "
        "sys.exit(3)"
    )
    assert run_python(echo, given) == (3, b"1048576", b"e")


def test_a_program_that_reads_nothing_or_prints_too_much_or_hangs_is_ended():
    assert run_python("print('done')", b"x" * (1 << 20)) == (0, b"done\n", b"")
    code, output, _ = run_python("while True: print('y' * 1000)")
    assert (code, len(output)) == (-1, MAX_OUTPUT_BYTES)
    code, output, _ = run_python("import time; print('a', flush=True); time.sleep(60)", limit_s=0.5)
    assert (code, output) == (-1, b"a\n")
    with pytest.raises(ClaryError, match="install it"):
        run_bounded(["no-such-program"], b"", limit_s=1.0)


# A certificate authority made for this test; its key was not kept.
PEM = """-----BEGIN CERTIFICATE-----
AAECAwQFBgcICQoLDA0ODw==
-----END CERTIFICATE-----
"""
PRINT = "be45cb2605bf36bebde684841a28f0fd43c69850a3dce5fedba69928ee3a8991"


def test_fingerprints_are_of_the_certificate_and_not_of_its_text():
    assert fingerprint(PEM) == fingerprint(f"\n{PEM}\n") == PRINT
    with pytest.raises(ValueError, match="PEM"):
        fingerprint("no certificate")


def joins(monkeypatch, tmp_path, token, *arguments, served=PEM):
    """Run `clary join` against a service with this authority; return its exit code and all requests."""
    asked = []

    def request(url, ca_pem, method, path, *, token="", document=None):
        asked.append((path, ca_pem, token))
        return {"ca_pem": served} if path.endswith("authority") else {"token": "box-token"}

    def node(place, verb, document):
        asked.append((verb, document.get("ca_pem"), document.get("token", "")))
        return PROBE if verb == "probe" else {}

    monkeypatch.setattr(join, "_request", request)
    monkeypatch.setattr(join, "ask_node", node)
    file = tmp_path / "token"
    file.write_text(token)
    return main(["join", "https://head:4571/", "--token-file", str(file), "--name", "box1", *arguments]), asked


def test_a_machine_joins_the_service_that_its_token_names(monkeypatch, tmp_path, capsys):
    code, asked = joins(monkeypatch, tmp_path, f"{PRINT}.secret\n")
    assert code == 0
    assert asked == [
        ("/clary/v1/authority", "", ""),
        ("probe", PEM, ""),
        ("/clary/v1/join", PEM, "secret"),
        ("install", PEM, "box-token"),
    ]
    assert capsys.readouterr().out.startswith("box1   has joined   8 CPUs, 62 GiB, no GPUs, namespaces\n")


def test_a_service_with_another_authority_gets_no_token(monkeypatch, tmp_path, capsys):
    for served in ("no certificate", PEM.replace("AAEC", "AAED")):
        code, asked = joins(monkeypatch, tmp_path, f"{PRINT}.secret", served=served)
        assert code == 2
        assert [path for path, *_ in asked] == ["/clary/v1/authority"]
        assert "is not the service that the token is for" in capsys.readouterr().err


def test_the_trusted_authority_must_be_given_by_file_or_fingerprint(monkeypatch, tmp_path, capsys):
    authority = tmp_path / "ca.pem"
    authority.write_text(PEM)
    code, asked = joins(monkeypatch, tmp_path, "secret", "--ca", str(authority))
    assert (code, asked[0]) == (0, ("probe", PEM, ""))
    spelled = "sha256:" + ":".join(PRINT[at : at + 2] for at in range(0, 64, 2)).upper()
    assert joins(monkeypatch, tmp_path, "secret", "--ca", spelled)[0] == 0
    assert joins(monkeypatch, tmp_path, "secret")[0] == 2
    assert "say whom to trust with --ca" in capsys.readouterr().err
    authority.write_text("nothing")
    assert joins(monkeypatch, tmp_path, "secret", "--ca", str(authority))[0] == 2
    assert joins(monkeypatch, tmp_path, "two words")[0] == 2


def test_a_token_is_printed_alone_with_the_fingerprint_before_it(monkeypatch, capsys):
    made = {"token": "secret", "ca_pem": PEM, "expires_at": "soon", "service_url": "https://head:4571"}
    fake = use(monkeypatch, page(), answers={"join-tokens": made})
    assert main(["hosts", "token", "--minutes", "2"]) == 0
    told = capsys.readouterr()
    assert told.out == f"{PRINT}.secret\n"
    assert "clary join https://head:4571 --token-file FILE" in told.err
    assert fake.sent == [("join-tokens", {"valid_s": 120.0})]
