"""What must not work."""

import asyncio
import contextlib
import json
import threading
import time
import uuid
import zlib
from collections import Counter

import httpx
import pytest
from fastapi.testclient import TestClient

from mie.review.api import CRITERIA, ApiError
from mie.review.auth import (
    HASHES_AT_ONCE,
    HASHES_WAITING,
    MAX_FAILURES,
    MAX_FAILURES_ANYWHERE,
    LoginLimiter,
    add_user,
    create_invite,
    create_local_invite,
    hash_password,
    token_digest,
)
from mie.review.database import invites, sessions, users
from mie.review.server import MAX_JSON, MAX_UPLOAD, STATIC, create_app
from tests.review.conftest import URL, Person


@pytest.fixture
def place(tmp_path):
    """None of this depends on the database."""
    return str(tmp_path / "review.sqlite")


@pytest.fixture
def opened(review):
    return review("inspect", "mask", "rank", raters=1)


def code(answer):
    return answer.status_code, answer.json()["error"]["code"]


def test_without_a_session_or_with_a_forged_one_nothing_is_told(opened):
    with_cookie = opened.person("Ada").http.cookies["mie_session"]
    forged = (None, "", "x", with_cookie[:-1], with_cookie.swapcase(), token_digest(with_cookie), "a" * 4000)
    for cookie in forged:
        stranger = TestClient(opened.app, base_url=URL)
        if cookie is not None:
            stranger.cookies.set("mie_session", cookie)
        for path in (
            "/me",
            "/tasks/inspect",
            "/items/1",
            "/items/1/images/input",
            "/users",
            "/export/rank.csv",
        ):
            assert code(stranger.get(f"/api{path}")) == (401, "login")
        assert code(stranger.post("/api/tasks/inspect/next", json={})) == (401, "login")


def test_the_cookie_is_strict_and_only_hashes_are_stored(opened):
    with opened.service.database.write() as connection:
        token = create_invite(connection, name="Ada", role="rater", days=1)[1]
    client = TestClient(opened.app, base_url=URL)
    joined = client.post("/api/join", json={"token": token})
    cookie = joined.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie  # http on this machine
    with opened.service.database.read() as connection:
        stored = str(connection.execute(sessions.select()).all() + connection.execute(invites.select()).all())
    assert token not in stored
    assert client.cookies["mie_session"] not in stored
    safe = create_app(opened.service, url="https://review.example.org")
    with opened.service.database.write() as connection:
        token = create_invite(connection, name="Ada", role="rater", days=1)[1]
    client = TestClient(safe, base_url="https://review.example.org")
    joined = client.post("/api/join", json={"token": token})
    assert "Secure" in joined.headers["set-cookie"]
    assert "max-age" in joined.headers["strict-transport-security"]


def test_a_link_works_once_and_not_after_its_time(opened):
    with opened.service.database.write() as connection:
        tokens = [create_invite(connection, name=None, role="rater", days=d)[1] for d in (1, -1)]
    client = TestClient(opened.app, base_url=URL)
    assert code(client.post("/api/join", json={"token": tokens[0]})) == (422, "name_needed")  # not spent yet
    assert client.post("/api/join", json={"token": tokens[0], "name": "Ada"}).status_code == 200
    assert code(client.post("/api/join", json={"token": tokens[0], "name": "Eve"})) == (410, "used")
    assert code(client.post("/api/join", json={"token": tokens[1], "name": "Eve"})) == (410, "used")


def test_logging_out_kills_the_session(opened):
    ada = opened.person("Ada")
    stolen = ada.http.cookies["mie_session"]
    assert ada.http.post("/api/logout").status_code == 204
    thief = TestClient(opened.app, base_url=URL, cookies={"mie_session": stolen})
    assert code(thief.get("/api/me")) == (401, "login")


def test_every_write_needs_the_csrf_token(opened):
    """Walks the whole description, so that a new route cannot forget it."""
    admin = opened.person("Ada", "admin")
    description = admin.http.get("/api/openapi.json").json()
    del admin.http.headers["X-CSRF-Token"]
    tried = 0
    for path, verbs in description["paths"].items():
        for verb in verbs:
            if verb == "get" or path in ("/api/join", "/api/login"):
                continue
            url = path.format(kind="inspect", item_id=1, user_id=1, invite_id=1, format="csv")
            for token in (None, "", "x", "é" * 20):
                headers = {} if token is None else {"X-CSRF-Token": token.encode()}
                body = {"content": b"x"} if verb == "put" else {"json": {"count": 1}}
                answer = admin.http.request(verb, url, headers=headers, **body)
                assert code(answer) == (403, "csrf"), (verb, url)
            tried += 1
    assert tried >= 9


def test_other_pages_and_other_names_are_refused(opened):
    ada = opened.person("Ada")
    (item,) = ada.take("inspect")
    for origin in ("https://evil.example", "null", "http://127.0.0.1:9000", "http://127.0.0.1.evil.example"):
        answer = ada.http.post("/api/tasks/inspect/next", json={}, headers={"Origin": origin})
        assert code(answer) == (403, "origin")
    answer = ada.http.post("/api/tasks/inspect/next", json={}, headers={"Sec-Fetch-Site": "cross-site"})
    assert code(answer) == (403, "origin")
    assert ada.http.post("/api/tasks/inspect/next", json={}, headers={"Origin": URL}).status_code == 200
    for host in ("evil.example", "127.0.0.1:9000", "127.0.0.1", ""):
        assert code(ada.http.get("/api/me", headers={"Host": host})) == (403, "host")
    # A form on another page cannot send JSON.
    form = ada.http.post(
        f"/api/items/{item['id']}/undo", content='{"key": "aaaaaaaa"}', headers={"Content-Type": "text/plain"}
    )
    assert form.status_code in (415, 422)


def test_another_raters_item_does_not_exist(opened):
    ada, eve = opened.person("Ada"), opened.person("Eve")
    (item,) = ada.take("rank")
    ada.answer(item, rankings={c: [["A"], ["B"]] for c in CRITERIA})
    (mask,) = ada.take("mask")
    for path in (f"/items/{item['id']}", item["outputs"][0]["image"][4:], item["images"]["input"][4:]):
        assert code(eve.http.get(f"/api{path}")) == (404, "unknown")
    body = {"key": uuid.uuid4().hex, "version": item["version"], "seconds": 1}
    answer = {
        "kind": "rank",
        "rankings": {c: [["A", "B"]] for c in CRITERIA},
    }
    eve.post(f"/items/{item['id']}/answers", 404, **body, answer=answer)
    eve.post(f"/items/{item['id']}/undo", 404, key=uuid.uuid4().hex)
    upload = eve.http.put(
        f"/api/items/{mask['id']}/mask", content=b"x", headers={"Content-Type": "image/png"}
    )
    assert code(upload) == (404, "unknown")


def test_raters_see_no_figures_no_answers_of_others_and_no_people(opened):
    ada, judge = opened.person("Ada"), opened.person("Judge", "adjudicator")
    for path in ("/tasks/inspect/figures", "/tasks/inspect/consensus", "/tasks/inspect/consensus/1"):
        assert code(ada.http.get(f"/api{path}")) == (403, "role")
        assert judge.http.get(f"/api{path}").status_code == 200
    for path in ("/users", "/invites", "/audit", "/export/rank.csv", "/export/inspect.jsonl"):
        for person in (ada, judge):
            assert code(person.http.get(f"/api{path}")) == (403, "role")
    for person in (ada, judge):
        assert code(person.http.post("/api/invites", json={"role": "admin"})) == (403, "role")
        assert code(person.http.post("/api/users/1", json={"role": "admin"})) == (403, "role")


def test_paths_stay_inside(opened):
    ada = opened.person("Ada")
    (item,) = ada.take("rank")
    names = ["../../meta", "..%2f..%2fetc%2fpasswd", "%2e%2e", "input.png", "a" * 200, "upload-" + "0" * 64]
    names += ["output-model-x", "output-", "output-0", "turn0-output", "turn7-input", "proposal-source"]
    for name in names:
        answer = ada.http.get(f"/api/items/{item['id']}/images/{name}")
        assert answer.status_code in (404, 422), name
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"):
        answer = ada.http.get(path)
        assert answer.status_code == 404, path
        assert b"FastAPI" not in answer.content


def test_an_output_that_is_a_link_out_of_its_run_is_not_served(opened, material, tmp_path):
    ada = opened.person("Ada")
    (item,) = ada.take("rank")
    run = opened.service.material.runs["model-x"]
    path = run.output_path(item["sample_id"], 0)
    kept = path.read_bytes()
    try:
        outside = tmp_path / "secret.png"
        outside.write_bytes(kept)  # the very same bytes: only the place is wrong
        path.unlink()
        path.symlink_to(outside)
        states = sorted(ada.http.get(o["image"]).status_code for o in item["outputs"])
        assert states == [200, 404]
        path.unlink()
        path.write_bytes(kept + b"\0")  # the right place, other bytes
        states = sorted(ada.http.get(o["image"]).status_code for o in item["outputs"])
        assert states == [200, 404]
    finally:
        path.unlink()
        path.write_bytes(kept)


def test_what_is_too_large_is_not_read(opened):
    ada = opened.person("Ada")
    (item,) = ada.take("mask")
    path, headers = f"/api/items/{item['id']}/mask", {"Content-Type": "image/png"}
    assert code(ada.http.put(path, content=bytes(MAX_UPLOAD + 1), headers=headers)) == (413, "too_large")

    def endless():
        for _ in range(MAX_UPLOAD // 65536 + 2):
            yield bytes(65536)

    # Nothing said how long it would be.
    assert code(ada.http.put(path, content=endless(), headers=headers)) == (413, "too_large")
    long = ada.http.post("/api/tasks/inspect/next", content=b" " * (MAX_JSON + 1))
    assert code(long) == (413, "too_large")
    header = b"IHDR" + (100_000).to_bytes(4, "big") * 2 + b"\x08\0\0\0\0"
    bomb = b"\x89PNG\r\n\x1a\n\0\0\0\r" + header + zlib.crc32(header).to_bytes(4, "big") + bytes(64)
    refused = ada.http.put(path, content=bomb, headers=headers)
    assert code(refused) == (422, "invalid")
    assert "the mask has the wrong size" in refused.text


def test_a_script_in_a_comment_stays_text(opened):
    ada, judge = opened.person("Ada"), opened.person("Judge", "admin")
    (item,) = ada.take("inspect")
    script = "<script>alert(1)</script>\"'&\u2028</textarea>"
    ada.answer(item, decision="reject", reason="<img src=x onerror=alert(1)>", comment=script)
    seen = judge.http.get(f"/api/tasks/inspect/consensus/{item['id']}")
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["x-content-type-options"] == "nosniff"
    assert seen.json()["answers"][0]["answer"]["comment"] == script
    line = json.loads(judge.http.get("/api/export/inspect.jsonl").text)
    assert line["answer"]["comment"] == script
    assert script not in judge.http.get("/api/export/inspect.csv").text


def test_names_with_and_without_the_usual_port(opened):
    for url, host, origin in (
        ("http://127.0.0.1:80", "127.0.0.1", "http://127.0.0.1"),
        ("https://Review.example.org/", "review.example.org", "https://review.example.org"),
        ("https://review.example.org:8443", "review.example.org:8443", "https://review.example.org:8443"),
    ):
        client = TestClient(create_app(opened.service, url=url), base_url=url)
        sent = client.post("/api/login", json={}, headers={"Host": host, "Origin": origin})
        assert code(sent) == (422, "invalid")
        sent = client.post("/api/login", json={}, headers={"Host": host, "Origin": origin + ".evil.example"})
        assert code(sent) == (403, "origin")


def test_every_response_carries_the_headers(opened):
    ada = opened.person("Ada")
    for answer in (ada.http.get("/"), ada.http.get("/api/me"), ada.http.get("/api/none"), ada.http.get("/x")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-frame-options"] == "DENY"
    assert ada.http.get("/api/me").headers["cache-control"] == "no-store"
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    for word in ("http://", "https://", "<style", " style=", " onclick=", "javascript:"):
        assert word not in page


def test_passwords_and_the_limit_on_guesses(opened):
    with opened.service.database.write() as connection:
        token = create_invite(connection, name="Ada", role="rater", days=1)[1]
    client = TestClient(opened.app, base_url=URL)
    short = client.post("/api/join", json={"token": token, "password": "short"})
    assert code(short) == (422, "invalid")
    assert "'short'" not in short.text  # what was sent does not come back
    assert client.post("/api/join", json={"token": token, "password": "correct horse"}).status_code == 200
    with opened.service.database.read() as connection:
        stored = connection.execute(users.select()).one().password
    assert stored.startswith("$argon2id$")
    other = TestClient(opened.app, base_url=URL)
    assert other.post("/api/login", json={"name": "Ada", "password": "correct horse"}).status_code == 200
    for name in 10 * ["Ada"] + ["Nobody"]:
        assert code(other.post("/api/login", json={"name": name, "password": "wrong"})) == (401, "login")
    rejected = other.post("/api/login", json={"name": "Ada", "password": "correct horse"})
    assert code(rejected) == (429, "slow_down")
    assert int(rejected.headers["retry-after"]) > 0


def test_failed_logins_lock_nobody_else_out(opened):
    """Behind a proxy everybody has one address: who guesses there must not keep the others away."""
    guard = opened.app.state.limiter
    with opened.service.database.write() as connection:
        add_user(connection, "Ada", "rater", hash_password("correct horse"))
        token = create_invite(connection, name="Bea", role="rater", days=1)[1]
    for number in range(200):
        with contextlib.suppress(ApiError):
            guard.begin(f"name {number % 20}", "testclient")
    client = TestClient(opened.app, base_url=URL)
    for _ in range(60):
        assert code(client.post("/api/join", json={"token": "guess"})) == (410, "used")
    assert client.post("/api/login", json={"name": "Ada", "password": "correct horse"}).status_code == 200
    assert client.post("/api/join", json={"token": token}).status_code == 200


def test_logins_that_succeed_do_not_count(opened):
    limiter = LoginLimiter()
    for _ in range(MAX_FAILURES_ANYWHERE + 1):
        limiter.begin("Ada", "10.0.0.7")
        limiter.succeed("Ada", "10.0.0.7")
    for number in range(MAX_FAILURES_ANYWHERE):
        limiter.begin("Ada", f"10.0.0.{number}")
    with pytest.raises(ApiError, match="too many attempts"):
        limiter.begin("Ada", "10.0.1.0")  # guesses from many addresses


def test_guesses_at_the_same_moment_are_counted_before_they_are_checked(opened, monkeypatch):
    """And no more than two passwords are hashed at once: each takes 64 MiB."""
    checks, at_once = [], []
    running = threading.Semaphore(HASHES_AT_ONCE)

    def slow(*_):
        at_once.append(running.acquire(blocking=False))
        checks.append(time.sleep(0.02))
        running.release()

    monkeypatch.setattr("mie.review.routes.check_password", slow)

    async def guess():
        transport = httpx.ASGITransport(opened.app)
        async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
            body = {"name": "Ada", "password": "wrong"}
            return await asyncio.gather(*(client.post("/api/login", json=body) for _ in range(40)))

    statuses = Counter(answer.status_code for answer in asyncio.run(guess()))
    assert statuses == {401: MAX_FAILURES, 429: 40 - MAX_FAILURES}
    assert len(checks) == MAX_FAILURES
    assert all(at_once)


def test_a_flood_of_logins_waits_in_a_short_line(opened, monkeypatch):
    monkeypatch.setattr("mie.review.routes.check_password", lambda *_: time.sleep(0.02))

    async def flood():
        transport = httpx.ASGITransport(opened.app)
        async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
            bodies = [{"name": f"name {n}", "password": "wrong"} for n in range(100)]
            return await asyncio.gather(*(client.post("/api/login", json=body) for body in bodies))

    statuses = Counter(answer.status_code for answer in asyncio.run(flood()))
    assert statuses[429] >= 100 - HASHES_AT_ONCE - HASHES_WAITING - 20
    assert statuses[401] >= HASHES_AT_ONCE + HASHES_WAITING


def test_a_stranger_has_no_password_hashed(opened, monkeypatch):
    hashed = []
    monkeypatch.setattr("mie.review.routes.hash_password", hashed.append)
    client = TestClient(opened.app, base_url=URL)
    answer = client.post("/api/join", json={"token": "guess", "password": "correct horse"})
    assert code(answer) == (410, "used")
    assert hashed == []


def test_a_new_password_ends_the_sessions_of_before(opened):
    thief = opened.person("Ada")
    assert thief.get("/me")["user"]["name"] == "Ada"  # and the cache knows the session
    with opened.service.database.write() as connection:
        token = create_invite(connection, name="Ada", role="rater", days=1)[1]
    ada = TestClient(opened.app, base_url=URL)
    assert ada.post("/api/join", json={"token": token, "password": "correct horse"}).status_code == 200
    assert code(thief.http.get("/api/me")) == (401, "login")
    assert ada.get("/api/me").status_code == 200
    assert [e["action"] for e in opened.person("Root", "admin").get("/audit")["entries"]][1] == (
        "join with password"
    )


def test_the_description_of_the_interface_needs_a_login(opened):
    stranger = TestClient(opened.app, base_url=URL)
    for path in ("/api/openapi.json", "/openapi.json", "/docs", "/redoc"):
        assert stranger.get(path).status_code in (401, 404)
    assert "/api/me" in opened.person("Ada").get("/openapi.json")["paths"]


def test_a_password_is_set_once_and_never_taken_over(opened):
    ada = opened.person("Ada")
    assert ada.me["can"]["set_password"] is True
    without = TestClient(opened.app, base_url=URL, cookies=ada.http.cookies)
    assert code(without.post("/api/password", json={"password": "correct horse"})) == (403, "csrf")
    ada.post("/password", 422, password="short")
    assert ada.http.post("/api/password", json={"password": "correct horse"}).status_code == 204
    ada.post("/password", 409, password="another horse")
    assert ada.get("/me")["can"]["set_password"] is False
    other = TestClient(opened.app, base_url=URL)
    assert other.post("/api/login", json={"name": "Ada", "password": "another horse"}).status_code == 401
    assert other.post("/api/login", json={"name": "Ada", "password": "correct horse"}).status_code == 200
    with opened.service.database.write() as connection:
        token = create_local_invite(connection)
    local = TestClient(opened.app, base_url=URL)
    me = local.post("/api/join", json={"token": token}).json()
    assert me["can"]["set_password"] is False  # the command lets this person in
    local.headers["X-CSRF-Token"] = me["csrf"]
    assert local.post("/api/password", json={"password": "correct horse"}).status_code == 409


def test_the_last_admin_stays_and_a_closed_account_is_out(opened):
    with opened.service.database.write() as connection:
        connection.execute(users.delete())
    root, ada = opened.person("Root", "admin"), opened.person("Ada")
    root.post(f"/users/{root.me['user']['id']}", 409, role="rater")
    root.post(f"/users/{root.me['user']['id']}", 409, active=False)
    root.post(f"/users/{ada.me['user']['id']}", active=False)
    assert code(ada.http.get("/api/me")) == (401, "login")
    with pytest.raises(KeyError):
        Person(opened.service, opened.app, "Ada")  # an old name does not bring it back
    entries = root.get("/audit")["entries"]
    assert [e["action"] for e in entries if e["who"] == "Root"] == ["change user", "join"]
