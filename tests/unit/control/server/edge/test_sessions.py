"""Sessions of the console: signed, expiring, revocable; sign-in by token and code; the right to change data."""

import asyncio
import hmac
import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
from own_pages import FewParts
from server_parts import START, document

from clary.base.errors import WireError
from clary.control.server.edge import sessions as sessions_module
from clary.control.server.edge import sign_in as sign_in_module
from clary.control.server.edge.access import Access
from clary.control.server.edge.guesses import MAX_WRONG, WRONG_S, GuessLimiter
from clary.control.server.edge.sessions import CODE_S, MAX_CODES, SESSION_S, Sessions
from clary.control.server.edge.sign_in import SignIn, cookie_of
from clary.control.wire.messages import HttpRequest
from clary.testing.fake_clock import FakeClock

HOST = "127.0.0.1:8080"
ORIGIN = ("Origin", f"http://{HOST}")
COOKIE = "clary_session_" + hmac.new(b"key", b"name:", "sha256").digest()[:6].hex()


@pytest.fixture
def clock():
    return FakeClock(START)


@pytest.fixture
def sessions(tmp_path, clock):
    return Sessions(b"key", tmp_path / "revoked.json", clock)


@pytest.fixture
def signing_in(sessions, clock, monkeypatch):
    async def skip(seconds):
        SLEPT.append(seconds)

    SLEPT.clear()
    monkeypatch.setattr(sign_in_module.asyncio, "sleep", skip)
    return SignIn(sessions, admin_token="right", guesses=GuessLimiter(clock))


def asked(method="GET", *headers, body=None, path="/clary/v1/session", cookie=None, **options):
    pairs = [("Host", HOST), *headers, *([] if cookie is None else [("Cookie", f"{COOKIE}={cookie}")])]
    return HttpRequest(method, path, "", pairs, b"" if body is None else json.dumps(body).encode(), **options)


SLEPT = []  # seconds for which responses were delayed


def done(answer):
    """Return a response; if it is a coroutine, run it first."""
    return asyncio.run(answer) if asyncio.iscoroutine(answer) else answer


def refusal(call, *args):
    with pytest.raises(WireError) as refused:
        done(call(*args))
    return refused.value.http_status


def test_a_cookie_is_valid_until_it_expires(sessions, clock):
    session, cookie = sessions.begin()
    assert sessions.read(cookie) == session
    assert (session.user, session.is_admin) == ("owner", True)
    clock.advance(SESSION_S - 1)
    assert sessions.read(cookie) == session
    clock.advance(1)
    assert sessions.read(cookie) is None


def test_a_forged_or_damaged_cookie_is_rejected(sessions, tmp_path, clock):
    _session, cookie = sessions.begin()
    left, _, right = cookie.partition(".")
    other = Sessions(b"another key", tmp_path / "x.json", clock).begin()[1]
    damaged = [
        cookie[:number] + ("A" if letter != "A" else "B") + cookie[number + 1 :] for number, letter in enumerate(cookie)
    ]
    for forged in [
        "",
        ".",
        left,
        f"{left}.",
        f".{right}",
        f"{right}.{left}",
        other,
        cookie + "=",
        cookie * 9,
        "\u00e9.\u00e9",
    ]:
        assert sessions.read(forged) is None, forged
    assert [sessions.read(one) for one in damaged] == [None] * len(damaged)


def test_a_revoked_session_stays_revoked_after_a_restart_of_the_service(sessions, tmp_path, clock, monkeypatch):
    session, cookie = sessions.begin()
    kept = sessions.begin()
    sessions.revoke(session)
    again = Sessions(b"key", tmp_path / "revoked.json", clock)
    for one in (sessions, again):
        assert one.read(cookie) is None
        assert one.read(kept[1]) == kept[0]
    monkeypatch.setattr(sessions_module, "MAX_REVOKED", 1)
    again.revoke(kept[0])
    assert list(json.loads((tmp_path / "revoked.json").read_text())) == [kept[0].session_id], "they add up for ever"


def test_a_revoked_session_is_on_the_disk_when_the_sign_out_is_answered(sessions, signing_in, tmp_path, monkeypatch):
    forced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: forced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    done(signing_in.end(asked("DELETE"), sessions.begin()[0]))
    assert [Path(path).parent for path in forced[:-1]] == [tmp_path], "the file"
    assert forced[-1] == str(tmp_path), "its name"


@pytest.mark.parametrize("step_s", [60, 3600, 86_400, -60, -3600, -86_400])
def test_a_step_of_the_clock_ends_no_session_and_restores_none(tmp_path, clock, sessions, step_s):
    session, cookie = sessions.begin()
    revoked, given_up = sessions.begin()
    sessions.revoke(revoked)
    clock.set_time_of_day(clock.now() + timedelta(seconds=step_s))
    sessions.revoke(sessions.begin()[0])
    clock.advance(SESSION_S - 1)
    for one in (sessions, Sessions(b"key", tmp_path / "revoked.json", clock)):
        assert one.read(cookie) == session
        assert one.read(given_up) is None
    clock.advance(2)
    assert sessions.read(cookie) is None
    _, late = sessions.begin()
    clock.set_time_of_day(clock.now() - timedelta(seconds=step_s))
    assert sessions.read(late) is not None
    assert sessions.read(cookie) is None


def test_a_session_of_another_boot_expires_by_the_wall_clock(clock, sessions, monkeypatch):
    session, cookie = sessions.begin()
    monkeypatch.setattr(sessions_module, "boot_id", lambda: "another")
    assert sessions.read(cookie) == session
    clock.advance(SESSION_S)
    assert sessions.read(cookie) is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": "b"}', "null"])
def test_a_damaged_file_of_revoked_sessions_does_not_prevent_the_start(tmp_path, clock, text):
    (tmp_path / "revoked.json").write_text(text)
    sessions = Sessions(b"key", tmp_path / "revoked.json", clock)
    session, cookie = sessions.begin()
    assert sessions.read(cookie) == session


def test_a_code_opens_one_session_and_expires(sessions, clock):
    code, late = sessions.new_code(), sessions.new_code()
    assert sessions.redeem(code)
    assert not sessions.redeem(code)
    clock.advance(CODE_S)
    assert not sessions.redeem(late)
    assert not sessions.redeem("")


def test_the_oldest_of_too_many_codes_is_evicted(sessions):
    codes = [sessions.new_code() for _ in range(MAX_CODES + 1)]
    assert [sessions.redeem(code) for code in codes] == [False] + [True] * MAX_CODES


def test_a_sign_in_returns_a_strict_cookie_and_the_csrf_value(signing_in, sessions):
    answer = done(signing_in.begin(asked("POST", body={"token": " right\n"})))
    facts, cookie = document(answer), answer.header("set-cookie")
    assert cookie.endswith(f"; HttpOnly; SameSite=Strict; Path=/; Max-Age={SESSION_S}")
    session = sessions.read(cookie.partition(";")[0].removeprefix(f"{COOKIE}="))
    assert facts == {
        "user": "owner",
        "is_admin": True,
        "csrf": session.csrf,
        "ends_at_ms": int((START + timedelta(seconds=SESSION_S)).timestamp() * 1000),
    }
    assert signing_in.facts(session) == facts
    assert answer.header("cache-control") == "no-store"
    secure = done(signing_in.begin(asked("POST", body={"token": "right"}, is_secure=True)))
    assert secure.header("set-cookie").endswith("; Secure")


def test_a_sign_out_ends_the_session_and_deletes_the_cookie(signing_in, sessions):
    session, cookie = sessions.begin()
    answer = done(signing_in.end(asked("DELETE"), session))
    assert answer.header("set-cookie").startswith(f"{COOKIE}=; ")
    assert "Max-Age=0" in answer.header("set-cookie")
    assert sessions.read(cookie) is None
    assert done(signing_in.end(asked("DELETE"), None)).status == 200


@pytest.mark.parametrize("body", [{}, {"token": ""}, {"token": 1}, {"code": None}, [], "right", {"token": "x" * 5000}])
def test_a_body_without_a_token_is_refused_and_not_counted_as_a_wrong_token(signing_in, body):
    for _ in range(MAX_WRONG + 1):
        assert refusal(signing_in.begin, asked("POST", body=body)) == 400


def test_the_right_token_passes_after_any_number_of_wrong_ones_from_its_address(signing_in, clock):
    wrong = asked("POST", body={"token": "wrong"}, remote="10.0.0.1")
    right = asked("POST", body={"token": "right"}, remote="10.0.0.1")
    statuses = [refusal(signing_in.begin, wrong) for _ in range(MAX_WRONG + 3)]
    assert statuses == [403] * MAX_WRONG + [429] * 3
    assert SLEPT[:MAX_WRONG] == [0] * MAX_WRONG
    assert 0 < SLEPT[MAX_WRONG] < SLEPT[-1] <= 1, "each further refusal comes later"
    assert done(signing_in.begin(right)).status == 200
    clock.advance(WRONG_S)
    assert refusal(signing_in.begin, wrong) == 403


def test_wrong_codes_count_like_wrong_tokens(signing_in):
    wrong = asked("POST", body={"code": "guess"}, remote="a")
    statuses = [refusal(signing_in.begin, wrong) for _ in range(MAX_WRONG + 1)]
    assert statuses == [403] * MAX_WRONG + [429]


def test_a_sign_in_link_works_however_many_tokens_others_guess(signing_in, sessions):
    wrong = asked("POST", body={"token": "guess"}, remote="a")
    for _ in range(MAX_WRONG):
        refusal(signing_in.begin, wrong)
    by_link = asked("POST", body={"code": sessions.new_code()}, remote="a")
    assert done(signing_in.begin(by_link)).status == 200
    assert refusal(signing_in.begin, by_link) == 429  # a used code counts as a wrong code
    assert done(signing_in.begin(asked("POST", body={"token": "right"}, remote="a"))).status == 200


def test_a_code_is_created_only_with_the_token(signing_in, sessions):
    _session, cookie = sessions.begin()
    pages, path = FewParts(sessions=sessions, sign_in=signing_in, admin_token="right"), "/clary/v1/session-code"
    right = ("Authorization", "Bearer right")
    assert refusal(pages.handle, asked("POST", ORIGIN, path=path, cookie=cookie)) == 403
    assert refusal(pages.handle, asked("POST", ("Authorization", "Bearer wrong"), path=path)) == 403
    assert refusal(pages.handle, asked("GET", right, path=path)) == 405
    given = document(done(pages.handle(asked("POST", right, path=path))))
    assert given["valid_s"] == CODE_S
    answer = done(pages.handle(asked("POST", body={"code": given["code"]})))
    assert document(answer)["user"] == "owner"


def test_wrong_tokens_for_a_code_count_like_those_for_a_session(sessions, signing_in):
    pages = FewParts(sessions=sessions, sign_in=signing_in, admin_token="right").handler
    wrong = asked("POST", ("Authorization", "Bearer wrong"), path="/clary/v1/session-code")
    refused = [pages.admit(wrong) for _ in range(MAX_WRONG + 1)]
    assert [one.answer.status for one in refused] == [403] * MAX_WRONG + [429]


def test_a_request_without_a_session_is_refused(sessions, signing_in):
    pages = FewParts(sessions=sessions, sign_in=signing_in)
    assert refusal(pages.handle, asked()) == 401
    assert refusal(pages.handle, asked("OPTIONS")) == 405


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("clary_session_1=a", "a"),
        ("x=1; clary_session_1=a.b_-; y", "a.b_-"),
        ("clary_session_1=a; clary_session_1=b", None),  # ambiguous: another party may have set one of them
        ("clary_session_1=a; clary_session_2=b", "a"),  # the second cookie is of a service on another port
        ("xclary_session_1=a", None),
        ("__Host-clary_session_1=a", None),
        ("clary_session_1", ""),
        ("", None),
    ],
)
def test_the_cookie_is_found_among_others_if_it_is_unambiguous(header, found):
    assert cookie_of(HttpRequest("GET", "/", "", [("Cookie", header)]), "clary_session_1") == found


def test_two_services_of_one_host_use_two_cookie_names(tmp_path, clock):
    one, other = (Sessions(key, tmp_path / "x", clock) for key in (b"key", b"another"))
    assert one.cookie_name(is_secure=False) == COOKIE
    assert other.cookie_name(is_secure=False) != COOKIE
    assert one.cookie_name(is_secure=True) == f"__Host-{COOKIE}"


def test_over_tls_only_a_cookie_that_was_set_over_tls_counts(access, sessions):
    session, cookie = sessions.begin()
    assert refusal(access.let_in, asked(cookie=cookie, is_secure=True)) == 401
    over_tls = asked("GET", ("Cookie", f"__Host-{COOKIE}={cookie}"), is_secure=True)
    assert access.let_in(over_tls) == session


@pytest.fixture
def access(sessions):
    return Access(sessions, admin_token="right")


def test_a_valid_cookie_gives_a_request_its_session(access, sessions):
    session, cookie = sessions.begin()
    assert access.let_in(asked(cookie=cookie)) == session


def test_a_token_takes_precedence_over_a_cookie(access, sessions):
    _session, cookie = sessions.begin()
    assert access.let_in(asked("POST", ("Authorization", "Bearer right"), cookie=cookie)) is None
    assert refusal(access.let_in, asked("GET", ("Authorization", "Bearer something"), cookie=cookie)) == 403


@pytest.mark.parametrize("cookie", [None, "", "forged.cookie", "x" * 2000])
def test_a_request_without_a_valid_cookie_is_refused(access, cookie):
    assert refusal(access.let_in, asked(cookie=cookie)) == 401


CHANGES = [
    ((), 403),  # no origin, no CSRF value
    ((ORIGIN,), 403),
    ((ORIGIN, ("X-Clary-Csrf", "wrong")), 403),
    ((ORIGIN, ("X-Clary-Csrf", "")), 403),
    ((ORIGIN, ("X-Clary-Csrf", "t\udcffken")), 403),
    ((("X-Clary-Csrf", "CSRF"),), 403),
    ((("Origin", "http://evil.example"), ("X-Clary-Csrf", "CSRF")), 403),
    ((("Origin", "http://127.0.0.1:8081"), ("X-Clary-Csrf", "CSRF")), 403),
    ((("Origin", f"http://{HOST}.evil.example"), ("X-Clary-Csrf", "CSRF")), 403),
    ((("Origin", "null"), ("X-Clary-Csrf", "CSRF")), 403),
    ((("Origin", "http://[x"), ("X-Clary-Csrf", "CSRF")), 403),
    ((ORIGIN, ("Sec-Fetch-Site", "cross-site"), ("X-Clary-Csrf", "CSRF")), 403),
    ((ORIGIN, ("Sec-Fetch-Site", "same-site"), ("X-Clary-Csrf", "CSRF")), 403),
    ((("Sec-Fetch-Site", "none"), ("X-Clary-Csrf", "CSRF")), 403),
    ((ORIGIN, ("X-Clary-Csrf", "CSRF")), None),
    ((("Sec-Fetch-Site", "same-origin"), ("X-Clary-Csrf", "CSRF")), None),
    ((ORIGIN, ("Sec-Fetch-Site", "same-origin"), ("x-clary-csrf", "CSRF")), None),
]


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize(("headers", "status"), CHANGES)
def test_a_change_by_cookie_needs_the_csrf_value_and_our_own_origin(access, sessions, method, headers, status):
    session, cookie = sessions.begin()
    pairs = [(name, session.csrf if value == "CSRF" else value) for name, value in headers]
    request = asked(method, *pairs, cookie=cookie)
    if status is None:
        assert access.let_in(request) == session
    else:
        assert refusal(access.let_in, request) == status


def test_the_csrf_value_of_one_session_is_invalid_in_another(access, sessions):
    mine, theirs = sessions.begin(), sessions.begin()
    request = asked("POST", ORIGIN, ("X-Clary-Csrf", theirs[0].csrf), cookie=mine[1])
    assert refusal(access.let_in, request) == 403


def test_a_page_of_another_origin_can_not_sign_in(access):
    assert refusal(access.session_of, asked("POST", ("Origin", "http://evil.example"))) == 403
    assert access.session_of(asked("POST", ORIGIN)) is None
    assert access.session_of(asked("POST")) is None  # a program without a browser sends no origin


def test_a_cookie_is_well_below_the_limit_on_cookies(sessions):
    assert len(sessions.begin()[1]) < sessions_module.MAX_COOKIE_LENGTH / 2
