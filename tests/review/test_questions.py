"""Physicians answer questions blind to the key, and check what a model wrote, also in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mie.errors import ConfigError, MieError
from mie.questions.answers import answer_questions
from mie.questions.scoring.score import score_answers
from mie.questions.store import QuestionSet
from mie.questions.write import write_questions
from mie.report.questions import write_question_report
from mie.review.questions import accept_questions, people_answers
from mie.review.server import create_app
from mie.review.service import open_review
from tests.questions.tiny import closed, others
from tests.review.browser import QUIET, Seat, serving
from tests.review.conftest import URL, Person

CHROMIUM = next(
    (p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> QuestionSet:
    folder = tmp_path_factory.mktemp("review-questions") / "set"
    write_questions([*(closed(n) for n in range(6)), *others()], folder, name="tiny")
    return QuestionSet(folder)


def open_questions(tiny: QuestionSet, tmp_path: Path, *kinds: str, **settings: Any) -> Any:
    return open_review([tiny.folder], kinds=kinds, db=str(tmp_path / "review.sqlite"), **settings)


def answer(person: Person, item: dict[str, Any], reply: str, seconds: float = 4.0, status: int = 201) -> Any:
    return person.post(
        f"/items/{item['id']}/answers",
        status,
        key=f"key-{item['id']:08d}",
        version=item["version"],
        seconds=seconds,
        answer={"kind": "answer", "reply": reply},
    )


def test_nothing_that_is_sent_gives_the_key_away(tiny, tmp_path):
    service = open_questions(tiny, tmp_path)
    person = Person(service, create_app(service, url=URL), "Ada")
    seen = set()
    while items := person.take("answer"):
        (item,) = items
        question = next(q for q in tiny if q.id == item["sample_id"])
        seen.add(question.kind)
        assert "key" not in item
        texts = list(leaves({k: v for k, v in item.items() if k != "question"}))
        for secret in (question.answer, question.modality, question.source, question.patient_id):
            assert secret not in texts
        assert set(item["question"]) == {"kind", "text", "options", "unit", "task", "images"}
        assert [o["text"] for o in item["question"]["options"]] == list(question.options)
        assert len(item["pictures"]) == len(question.images)
        answer(
            person,
            item,
            {"closed": "A", "open": "glioma", "number": "12", "point": "0.2, 0.5"}.get(
                question.kind, "0.1, 0.1, 0.5, 0.5"
            ),
        )
    assert seen == {"closed", "open", "number", "point", "box"}
    service.database.close()


def leaves(value: Any) -> Iterator[Any]:
    """Every value in a JSON document, and every key."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from leaves(one)
    else:
        yield value


def test_images_of_other_kinds_and_numbers_are_not_there(tiny, tmp_path):
    service = open_questions(tiny, tmp_path)
    person = Person(service, create_app(service, url=URL), "Ada")
    (item,) = person.take("answer")
    good = person.http.get(item["pictures"][0])
    assert good.status_code == 200
    assert good.content.startswith(b"\x89PNG")
    for name in ("image-9", "input", "mask", "reference"):
        assert person.http.get(f"/api/items/{item['id']}/images/{name}").status_code == 404
    service.database.close()


def test_an_answer_must_fit_its_question(tiny, tmp_path):
    service = open_questions(tiny, tmp_path)
    person = Person(service, create_app(service, url=URL), "Ada")
    items = {}
    for item in person.take("answer", 10):
        items.setdefault(item["question"]["kind"], item)
    for kind, reply in (
        ("closed", "F"),
        ("closed", "MRI"),
        ("number", "wide"),
        ("point", "0.5"),
        ("point", "2, 0"),
        ("box", "0, 0, 1"),
    ):
        if kind in items:
            answer(person, items[kind], reply, status=422)
    answer(person, items["closed"], "")  # I cannot tell
    service.database.close()


def test_their_row_stands_beside_models_with_time_and_agreement(tiny, tmp_path):
    service = open_questions(tiny, tmp_path, raters=2)
    app = create_app(service, url=URL)
    keys = {q.id: q for q in tiny}
    for name, wrong in (("Ada", 0), ("Bob", 2)):
        person = Person(service, app, name)
        done = 0
        while items := person.take("answer"):
            question = keys[items[0]["sample_id"]]
            right = question.letter or question.answer.strip("[]")
            miss = question.kind == "closed" and wrong > 0
            wrong -= miss
            answer(
                person,
                items[0],
                "ABCDE"[("ABCDE".index(right) + 1) % len(question.options)] if miss else right,
                3.0 + done,
            )
            done += 1
    service.database.close()
    db = str(tmp_path / "review.sqlite")
    people = people_answers(db, tiny.folder, tmp_path / "people")
    results = score_answers(people)
    closed_ones = 7
    assert float(results["accuracy"]) == pytest.approx((2 * closed_ones - 2) / (2 * closed_ones))
    assert float(results["number"]) == float(results["place"]) == 1.0
    found = results.document["people"]
    assert [one["rater"] for one in found["raters"]] == ["R01", "R02"]
    assert [one["closed"] for one in found["raters"]] == [7, 7]
    assert found["raters"][0]["accuracy"] == 1.0
    assert found["raters"][1]["accuracy"] == pytest.approx(5 / 7)
    assert found["raters"][0]["median_seconds"] == pytest.approx(8.0)
    assert 0 < found["agreement"]["krippendorff_alpha"] < 1
    model = answer_questions(tiny, "constant", tmp_path / "constant", blind=True)
    score_answers(model)
    page = write_question_report([model.folder, people.folder], tmp_path / "report")
    text = page.read_text()
    assert text.index("physicians (2)") < text.index("constant")  # people first
    assert "Krippendorff" in text


def test_what_a_model_wrote_counts_once_people_accept_it(tiny, tmp_path):
    service = open_questions(tiny, tmp_path, "question")
    app = create_app(service, url=URL)
    person = Person(service, app, "Ada")
    (item,) = person.take("question", 5)  # the written one alone
    assert item["key"]["answer"] == "MRI"
    body = {"key": "a" * 8, "version": item["version"], "seconds": 5.0}
    person.post(
        f"/items/{item['id']}/answers", 422, answer={"kind": "question", "decision": "reject"}, **body
    )
    person.post(
        f"/items/{item['id']}/answers", 201, answer={"kind": "question", "decision": "accept"}, **body
    )
    assert service.describe_task("question", _session(person))["progress"]["done"] == 1
    service.database.close()
    db = str(tmp_path / "review.sqlite")
    accept_questions(db, tiny.folder, tmp_path / "accepted")
    reviewed = QuestionSet(tmp_path / "accepted")
    before, after = (next(q for q in found if q.task == "TPS") for found in (tiny, reviewed))
    assert (before.counts, after.counts) == (False, True)
    assert len(reviewed) == len(tiny)
    assert reviewed.digest != tiny.digest
    with pytest.raises(MieError, match="another question set"):
        people_answers(db, reviewed.folder, tmp_path / "other")
    with pytest.raises(ConfigError, match="no work of the kind"):
        people_answers(db, tiny.folder, tmp_path / "other")


def _session(person: Person) -> Any:
    class Session:
        user_id = person.me["user"]["id"]

    return Session()


def test_rejected_questions_are_left_out(tiny, tmp_path):
    service = open_questions(tiny, tmp_path, "question")
    person = Person(service, create_app(service, url=URL), "Ada")
    (item,) = person.take("question")
    verdict = {"kind": "question", "decision": "reject", "reason": "wrong key"}
    person.post(
        f"/items/{item['id']}/answers", 201, key="a" * 8, version=item["version"], seconds=1, answer=verdict
    )
    service.database.close()
    info = accept_questions(str(tmp_path / "review.sqlite"), tiny.folder, tmp_path / "accepted")
    assert info["counts"]["questions"] == len(tiny) - 1
    assert info["rejected"] == {"review": 1}


def test_a_kind_of_work_belongs_to_its_folder(tiny, tmp_path):
    with pytest.raises(ConfigError, match="not for this folder"):
        open_questions(tiny, tmp_path, "inspect")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield found
        found.close()


@pytest.mark.parametrize("width", [1400, 400])
def test_a_physicians_session(browser, tiny, tmp_path, width):
    """All kinds, by keyboard and by mouse; an answer can be changed; the time is in the database."""
    service = open_questions(tiny, tmp_path)
    keys = {q.id: q for q in tiny}
    with serving(service) as served:
        seat = Seat(browser, width=width).join(served)
        page = seat.page
        page.locator(".card", has_text="Answer questions").get_by_role("link").click()
        before, expected = 0, {}
        for _ in range(len(service_items(service))):
            shown = seat.shown(before)
            question = keys[sample_of(service, shown)]
            assert page.get_by_text(question.text).first.is_visible()
            assert page.locator(".stage canvas").count() == len(question.images)
            if question.kind == "closed":
                seat.press(str(question.options.index(question.answer) + 1))
                expected[shown] = question.letter
            elif question.kind in ("open", "number"):
                page.locator("#reply").fill("12" if question.kind == "number" else "a glioma")
                expected[shown] = "12" if question.kind == "number" else "a glioma"
            else:
                box = page.locator(".stage canvas").bounding_box()
                size = max(56 / box["width"], 48 / box["height"])  # image pixels for one of the screen
                left, top = box["width"] / 2 - 28 / size, box["height"] / 2 - 24 / size
                page.locator(".stage canvas").scroll_into_view_if_needed()
                box = page.locator(".stage canvas").bounding_box()
                x, y = box["x"] + left, box["y"] + top
                page.mouse.move(x + 14 / size, y + 24 / size)
                page.mouse.down()
                if question.kind == "box":
                    page.mouse.move(x + 42 / size, y + 36 / size, steps=3)
                page.mouse.up()
                expected[shown] = None
            page.get_by_role("button", name="Save").click()
            before = shown
        page.get_by_role("heading", name="Nothing left for you here").wait_for()
        seat.saved()
        said = served.answers("Ada")
        assert len(said) == len(keys) - 1  # not the one that nobody has accepted
        for number, reply in expected.items():
            assert reply is None or said[number]["reply"] == reply
        places = [said[n]["reply"] for n, reply in expected.items() if reply is None]
        points = [[float(part) for part in text.split(",")] for text in places]
        assert sorted(len(point) for point in points) == [2, 4]
        for point in points:
            assert point[:2] == pytest.approx([0.25, 0.5], abs=0.05)
        seat.close()
    people = people_answers(str(tmp_path / "review.sqlite"), tiny.folder, tmp_path / "people")
    assert all(one.seconds is not None and one.seconds > 0 for one in people.answers())
    assert float(score_answers(people)["accuracy"]) == 1.0


def test_checking_a_question_in_the_browser(browser, tiny, tmp_path):
    service = open_questions(tiny, tmp_path, "question")
    with serving(service) as served:
        seat = Seat(browser).join(served)
        seat.page.locator(".card", has_text="Check questions").get_by_role("link").click()
        shown = seat.shown()
        assert seat.page.get_by_text("✓ key").is_visible()
        seat.press("r", "1")
        seat.page.get_by_role("heading", name="Nothing left for you here").wait_for()
        seat.saved()
        assert served.answers()[shown]["reason"] == "wrong key"
        seat.close()


def service_items(service: Any) -> list[int]:
    from sqlalchemy import select

    from mie.review.database import items

    with service.database.read() as connection:
        return list(connection.scalars(select(items.c.id)))


def sample_of(service: Any, item: int) -> str:
    from sqlalchemy import select

    from mie.review.database import items

    with service.database.read() as connection:
        return str(connection.scalar(select(items.c.sample_id).where(items.c.id == item)))
