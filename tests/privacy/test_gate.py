import json
import os
import threading
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from PIL import Image as PilImage
from PIL import ImageDraw, ImageFont
from skimage import data
from typer.testing import CliRunner

from mie import api
from mie.cli import app
from mie.datasets.dataset import Dataset
from mie.datasets.exports import export
from mie.editors.http import Http
from mie.editors.run import run_editor
from mie.judges import JudgeOptions, open_judge
from mie.judges.contracts import Draft, Image, Prompt, Question
from mie.privacy import Gate, Policy, PrivacyError, gate
from mie.privacy.endpoints import proxy_of
from mie.privacy.identifiers import name_reason
from mie.privacy.text import text_boxes


def clean() -> np.ndarray:
    return np.ascontiguousarray(data.retina()[400:900, 400:900])


def lettered() -> np.ndarray:
    picture = PilImage.fromarray(clean())
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, 260, 60), "black")
    draw.text((10, 8), "SMITH^JOHN", "white", ImageFont.load_default(20))
    draw.text((10, 34), "DOB 12.03.1961", "white", ImageFont.load_default(16))
    return np.asarray(picture).copy()


def test_burned_in_text_is_found_where_it_is_and_a_clean_image_has_none():
    boxes = text_boxes(lettered())
    assert boxes
    covered = np.zeros((500, 500), bool)
    for left, top, right, bottom in boxes:
        covered[top:bottom, left:right] = True
    assert covered[12:24, 14:120].mean() > 0.9
    assert not covered[100:].any()
    assert text_boxes(clean()) == []


def test_a_side_marker_is_not_text():
    picture = PilImage.fromarray(np.full((300, 300, 3), 40, np.uint8))
    ImageDraw.Draw(picture).text((250, 20), "R", "white", ImageFont.load_default(32))
    assert text_boxes(np.asarray(picture).copy()) == []


def test_text_is_refused_redacted_or_allowed_and_logged(tmp_path):
    image = lettered()
    closed = Gate(Policy(deidentified=True), "example.org", tmp_path / "a.jsonl")
    with pytest.raises(PrivacyError) as caught:
        closed.release(image, "s1")
    assert "s1" in str(caught.value)
    redacting = Gate(Policy(deidentified=True, redact=True), "example.org", tmp_path / "b.jsonl")
    first, second = redacting.release(image, "s1"), redacting.release(image.copy(), "s1")
    assert np.array_equal(first, second)
    assert np.array_equal(image, lettered())  # the stored image stays
    assert (first[14:24, 14:120] == 0).mean() > 0.9
    assert text_boxes(first) == []
    allowing = Gate(Policy(allow_phi=True), "example.org", tmp_path / "c.jsonl")
    assert np.array_equal(allowing.release(image, "s1"), image)
    allowing.close()
    lines = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["allowed", "closed"]
    assert lines[0]["where"] == "s1"
    assert lines[0]["user"]
    assert lines[0]["time"]
    assert lines[1]["allowed"] == lines[1]["images"] == 1


def test_without_torch_only_the_users_word_opens_the_gate(monkeypatch):
    monkeypatch.setattr(gate, "can_look", lambda: False)
    with pytest.raises(PrivacyError, match="cannot be searched"):
        Gate(Policy(), "example.org").release(clean(), "s1")
    assert Gate(Policy(deidentified=True), "example.org").release(clean(), "s1") is not None


@pytest.mark.parametrize(
    "info",
    [
        None,
        {"deidentified": False},
        {"deidentified": True, "recipe": {"import": {"format": "folder"}}},  # a stranger's word
    ],
)
def test_a_statement_is_needed(info):
    with pytest.raises(PrivacyError, match="de-identified"):
        Gate(Policy(), "example.org").check_statement(info)
    Gate(Policy(deidentified=True), "example.org").check_statement(info)
    Gate(Policy(), "example.org").check_statement({"deidentified": True, "recipe": {}})
    vouched = {"deidentified": True, "recipe": {"import": {"vouched": True}}}
    Gate(Policy(), "example.org").check_statement(vouched)


class _Proxy(BaseHTTPRequestHandler):
    seen: list[str]

    def do_POST(self):
        self.seen.append(self.path)
        self.send_error(502)

    do_CONNECT = do_GET = do_POST  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def proxy(monkeypatch):
    handler = type("Handler", (_Proxy,), {"seen": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield handler.seen
    server.shutdown()
    server.server_close()


def test_a_judge_on_this_machine_is_never_reached_by_a_proxy(proxy, tmp_path):
    target = HTTPServer(("127.0.0.1", 0), type("Handler", (_Proxy,), {"seen": []}))
    threading.Thread(target=target.serve_forever, daemon=True).start()
    spec = f"openai:m,base_url=http://127.0.0.1:{target.server_port}/v1,retries=0"
    prompt = Prompt("p", 1, "system", "user")
    question = Question(prompt, ("look", Image(clean())), lambda text: (1.0,))
    with open_judge(JudgeOptions(spec), tmp_path, dataset={"deidentified": False}) as judge:
        judge.ask([Draft("k", lambda: question, prompt)])
    target.shutdown()
    target.server_close()
    assert proxy == []
    assert target.RequestHandlerClass.seen == ["/v1/chat/completions"]
    assert proxy_of("http://localhost:8000/v1") is None
    assert proxy_of("http://10.1.2.3/v1") == os.environ["HTTP_PROXY"]


def test_a_remote_judge_gets_no_image_with_text(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    prompt = Prompt("p", 1, "system", "user")
    question = Question(prompt, (Image(lettered()),), lambda text: (1.0,))
    spec = "openai:m,base_url=http://192.0.2.1/v1,retries=0,timeout=1"
    options = JudgeOptions(spec, allow_remote=True, deidentified=True)
    with open_judge(options, tmp_path, dataset={}) as judge:
        with pytest.raises(PrivacyError):
            judge.ask([Draft("k", lambda: question, prompt)])
        assert judge.calls == 0


def test_an_http_editor_elsewhere_passes_the_same_gate():
    assert Http("http://127.0.0.1:1/edit").destination is None
    editor = "http:http://192.0.2.1/edit,timeout=1,retries=0"
    with pytest.raises(PrivacyError, match="--allow-remote"):
        api.edit(clean(), "Mark it.", editor)
    with pytest.raises(PrivacyError, match="nobody says"):
        api.edit(clean(), "Mark it.", editor, policy=Policy(allow_remote=True))
    with pytest.raises(PrivacyError, match="identify a patient"):
        api.edit(lettered(), "Mark it.", editor, policy=Policy(deidentified=True, allow_remote=True))


def test_an_edit_elsewhere_is_logged_beside_its_output(tmp_path):
    """Whether the server answers or not: the line is written before the image leaves."""
    PilImage.fromarray(lettered()).save(tmp_path / "a.png")
    words = ["edit", tmp_path / "a.png", "Mark it.", "-o", tmp_path / "out.png"]
    words += ["-e", "http:http://192.0.2.1/edit,timeout=1,retries=0", "--allow-remote"]
    log = tmp_path / "out.png.privacy.jsonl"
    CliRunner().invoke(app, [*map(str, words), "--deidentified"])
    CliRunner().invoke(app, [*map(str, words), "--deidentified", "--redact"])
    CliRunner().invoke(app, [*map(str, words), "--allow-phi"])
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    events = [line["event"] for line in lines]
    assert events == ["refused", "redacted", "closed", "allowed", "closed"]
    assert lines[3]["policy"] == {**asdict(Policy()), "allow_phi": True, "allow_remote": True}
    assert {line["destination"] for line in lines} == {lines[0]["destination"]}
    assert lines[0]["findings"][0]["kind"] == "text"


def test_a_run_by_a_remote_editor_sends_nothing_of_a_dataset_without_a_statement(tmp_path, small_dataset):
    editor = "http:http://192.0.2.1/edit,timeout=1,retries=0"
    with pytest.raises(PrivacyError, match="nobody says"):
        run_editor(small_dataset, editor, tmp_path / "run", policy=Policy(allow_remote=True))


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("scans/Smith_John/a.png", True),
        ("DOE^JANE.dcm", True),
        ("MRN 0012345/a.png", True),
        ("1961-03-12/a.png", True),
        ("drive/21_training.png", False),
        ("0123456789abcdef#axial-0042", False),
        ("benign (12).png", False),
    ],
)
def test_names_in_paths(path, named):
    assert (name_reason(path) is not None) is named


def test_a_public_export_is_refused_or_redacted(tmp_path, lettered_dataset):
    dataset = Dataset(lettered_dataset)
    with pytest.raises(PrivacyError, match="nobody says"):
        export(dataset, tmp_path / "a", "folder", public=Policy())
    with pytest.raises(PrivacyError, match="text"):
        export(dataset, tmp_path / "b", "folder", public=Policy(deidentified=True))
    assert not (tmp_path / "b").exists()
    policy = Policy(deidentified=True, redact=True)
    export(dataset, tmp_path / "c", "folder", public=policy)
    export(dataset, tmp_path / "d", "folder", public=policy)
    (first,), (second,) = (sorted((tmp_path / name / "input").iterdir()) for name in "cd")
    assert first.read_bytes() == second.read_bytes()
    assert text_boxes(np.asarray(PilImage.open(first)).copy()) == []
    assert text_boxes(next(iter(dataset.samples())).input) != []  # the stored dataset stays
    log = (tmp_path / "c.privacy.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["redacted"] == 2  # input and target
    assert not list((tmp_path / "c").glob("*privacy*"))
