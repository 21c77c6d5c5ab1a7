"""The four providers' editors against a server that speaks their interfaces: what is sent, what fails."""

import base64
import json
import struct
import zlib

import cv2
import numpy as np
import pytest

from mie.core import retry
from mie.editors import Edited, EditError, RefusedError, Request, SampleRef, StopRunError, Turn, open_editor
from mie.errors import ConfigError
from mie.images.png import encode_png
from tests.conftest import crop
from tests.editors.providers import KEY, KEYS, PATHS, REFUSALS, answer, providers

NAMES = list(KEYS)
SAMPLE = SampleRef("PAT0017-secret", "PAT0017-secret", {"patient": "Jane Doe"})


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.01)
    for variable in KEYS.values():
        monkeypatch.setenv(variable, KEY)
    with providers() as running:
        yield running
        assert running.wrong == []


def one(server, name, options="", **changes):
    """The outcome of one edit."""
    request = Request(crop(3, 120, 160), "Mark the disc · 盘", 42, sample=SAMPLE)
    with open_editor(server.spec(name, options)) as editor:
        try:
            return editor.edit_request(Request(**{**_fields(request), **changes}))
        except EditError as error:
            return error


def _fields(request):
    return {name: getattr(request, name) for name in Request.__slots__}


def mean_error(image, wanted):
    return float(np.abs(image.astype(int) - wanted.astype(int)).mean())


@pytest.mark.parametrize("name", NAMES)
def test_pixels_and_words_are_sent_and_nothing_else(server, name):
    outcome = one(server, name)
    assert isinstance(outcome, Edited)
    assert outcome.image.shape == (120, 160, 3)
    assert mean_error(outcome.image, 255 - crop(3, 120, 160)) < 6  # scaled to 1024x768 and back
    ((path, headers, fields),) = server.seen
    assert path == PATHS[name]
    assert headers["accept-encoding"] == "identity"
    assert fields["prompt"] == "Mark the disc · 盘"
    (sent,) = fields["images"]
    assert np.array_equal(sent, crop(3, 120, 160))
    everything = server.raw[0] + json.dumps(headers).encode()
    for word in (b"PAT0017", b"secret-0", b"Jane", b"patient"):
        assert word not in everything.replace(KEY.encode(), b"")
    assert outcome.meta["steps"] == [{"step": "resize", "from": [768, 1024], "to": [120, 160]}]


def test_openai_is_asked_as_its_interface_wants(server):
    one(server, "openai", ",size=1024x1024,quality=low,fidelity=high")
    one(server, "openai", ",size=256", references=[crop(5), crop(6)])
    first, second = (fields for _, _, fields in server.seen)
    assert first["names"] == [("image", "image0.png")]
    assert {k: v for k, v in first.items() if k not in ("images", "names", "prompt")} == {
        "model": "gpt-image-1",
        "n": "1",
        "size": "1024x1024",
        "quality": "low",
        "input_fidelity": "high",
        "output_format": "png",
    }
    assert first["images"][0].shape == (1024, 1024, 3)
    assert second["names"] == [("image[]", f"image{at}.png") for at in range(3)]
    assert second["size"] == "256x256"
    assert np.array_equal(second["images"][1], crop(5))
    assert np.array_equal(second["images"][2], crop(6))


def test_what_was_scaled_on_the_way_is_in_meta(server):
    steps = one(server, "openai", ",size=1024x1024").meta["steps"]
    assert steps == [
        {"step": "resize", "from": [120, 160], "to": [1024, 1024]},
        {"step": "resize", "from": [1024, 1024], "to": [120, 160]},
    ]
    outcome = one(server, "fal", ",size=native")
    assert "steps" not in outcome.meta
    assert np.array_equal(outcome.image, 255 - crop(3, 120, 160))
    assert server.seen[-1][2]["image_size"] == {"width": 160, "height": 120}


def test_gemini_gets_settings_and_a_conversation_with_roles(server):
    turns = [Turn("first", crop(11)), Turn("second", crop(12))]
    changes = {"image": crop(12), "history": turns, "references": [crop(13)]}
    outcome = one(server, "gemini", ",size=2K,aspect=1:1", **changes)
    body = server.seen[0][2]
    assert body["generationConfig"] == {
        "responseModalities": ["IMAGE"],
        "imageConfig": {"aspectRatio": "1:1", "imageSize": "2K"},
        "seed": 42,
    }
    assert [turn["role"] for turn in body["contents"]] == ["user", "model", "user", "model", "user"]
    texts = [part["text"] for turn in body["contents"] for part in turn["parts"] if "text" in part]
    assert texts == ["first", "second", "Mark the disc · 盘"]
    assert [len(turn["parts"]) for turn in body["contents"]] == [1, 1, 1, 1, 3]
    for sent, wanted in zip(body["images"], (11, 12, 12, 13), strict=True):
        assert np.array_equal(sent, crop(wanted))
    assert outcome.meta["tokens"] == {"input": 300, "output": 1200}  # with the tokens of its thoughts


def test_ark_gets_its_options(server):
    one(server, "ark", ",size=2K,guidance=2.5")
    one(server, "ark")
    first, second = (fields for _, _, fields in server.seen)
    assert (first["size"], first["guidance_scale"], first["seed"]) == ("2K", 2.5, 42)
    assert first["sequential_image_generation"] == "disabled"
    assert "size" not in second


@pytest.mark.parametrize("name", ["openai", "ark", "fal"])
def test_earlier_turns_are_further_images_but_not_twice(server, name):
    turns = [Turn("first", crop(11)), Turn("second", crop(12))]
    one(server, name, image=crop(12), history=turns, references=[crop(13)])
    images = server.seen[0][2]["images"]
    for sent, wanted in zip(images, (12, 11, 13), strict=True):
        assert np.array_equal(sent, crop(wanted))
    assert "first" not in server.seen[0][2]["prompt"]


def test_too_many_images_are_not_sent(server):
    assert "at most 16" in one(server, "openai", references=[crop(1)] * 16).reason
    assert server.seen == []


@pytest.mark.parametrize("name", NAMES)
def test_a_refusal_is_no_failure_and_is_not_retried(server, name):
    status, body = REFUSALS[name]
    server.fault = lambda handler, number, fields: handler.reply(body, status) or True
    outcome = one(server, name)
    assert isinstance(outcome, RefusedError)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("name", "body", "refused"),
    [
        ("gemini", {"candidates": [{"finishReason": "IMAGE_SAFETY", "finishMessage": "unsafe"}]}, True),
        ("gemini", {"candidates": [{"finishReason": "MAX_TOKENS", "content": {"parts": []}}]}, False),
        ("gemini", {"candidates": [{"finishReason": "STOP", "content": {"parts": [{"text": "no"}]}}]}, False),
        ("openai", {"error": {"code": "content_policy_violation", "message": "no"}}, True),
        ("openai", {"error": {"code": "invalid_value", "message": "content policy"}}, False),
        ("ark", {"data": [{"error": {"code": "OutputImageSensitiveContentDetected"}}]}, True),
        ("ark", {"error": {"code": "InputImageRiskDetection", "message": "no"}}, True),
        ("ark", {"error": {"code": "InvalidParameter", "message": "size"}}, False),
        ("fal", {"images": [{"url": "data:,"}], "has_nsfw_concepts": [True]}, True),
        ("fal", {"detail": [{"type": "image_too_small", "msg": "x"}]}, False),
        ("fal", {"detail": "not a list"}, False),
    ],
)
def test_what_counts_as_a_refusal(server, name, body, refused):
    status = 200 if "candidates" in body or "data" in body or "images" in body else 400
    server.fault = lambda handler, number, fields: handler.reply(body, status) or True
    outcome = one(server, name)
    assert isinstance(outcome, EditError)
    assert isinstance(outcome, RefusedError) == refused


@pytest.mark.parametrize("name", NAMES)
def test_busy_and_broken_servers_are_asked_again(server, name):
    def fault(handler, number, fields):
        if number == 1:
            handler.reply({"error": {"message": "slow down"}}, 429, Retry_After="0.05")
        elif number == 2:
            handler.reply({"error": {"message": "oops"}}, 500)
        elif number == 3:
            handler.close_connection = True  # cut off without a word
        else:
            return False
        return True

    server.fault = fault
    assert isinstance(one(server, name), Edited)
    assert len(server.seen) == 4
    assert len({bytes(raw) for raw in server.raw}) == 1  # the very same request each time


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_key_stops_the_run_and_is_not_shown(server, name, monkeypatch):
    monkeypatch.setenv(KEYS[name], "another-" + KEY)
    with pytest.raises(StopRunError) as stopped:
        one(server, name)
    assert "401" in str(stopped.value)
    assert KEYS[name] in stopped.value.fix
    assert KEY not in str(stopped.value)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("name", "status", "body"),
    [
        ("openai", 429, {"error": {"code": "insufficient_quota", "message": "no money"}}),
        ("gemini", 400, {"error": {"details": [{"reason": "API_KEY_INVALID"}]}}),
        ("fal", 403, {"detail": "User is locked. Reason: Exhausted balance"}),
        ("ark", 404, {"error": {"code": "ModelNotOpen"}}),
    ],
)
def test_what_no_other_edit_would_survive_stops_the_run(server, name, status, body):
    server.fault = lambda handler, number, fields: handler.reply(body, status) or True
    with pytest.raises(StopRunError):
        one(server, name)
    assert len(server.seen) == 1


def test_a_missing_key_is_told_before_anything_is_sent(monkeypatch):
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    with open_editor("gemini:gemini-3-pro-image-preview,base_url=https://example.org/v1") as editor:
        assert editor.destination == "example.org"
        with pytest.raises(StopRunError, match="no key") as stopped:
            editor.edit_request(Request(crop(3), "x"))
        assert "GEMINI_API_KEY" in str(stopped.value)
    with open_editor("gemini:m,base_url=https://example.org/v1,key_env=OTHER_KEY") as editor:
        with pytest.raises(StopRunError) as stopped:
            editor.edit_request(Request(crop(3), "x"))
        assert "OTHER_KEY" in str(stopped.value)


def test_a_server_on_this_machine_needs_no_key(server, monkeypatch):
    monkeypatch.delenv("ARK_API_KEY")
    server.fault = lambda handler, number, fields: handler.reply(answer("ark", encode_png(crop(3)))) or True
    assert isinstance(one(server, "ark"), Edited)
    assert "authorization" not in server.seen[0][1]


def bomb():
    """A PNG of 30,000 x 30,000 black pixels in a few kilobytes."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(10**6))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("body", "word"),
    [
        (lambda name: json.dumps(answer(name, encode_png(crop(3)))).encode()[:-40], "no picture"),
        (lambda name: json.dumps(answer(name, bomb())).encode(), "too large"),
        (lambda name: json.dumps(answer(name, b"GIF89a, or so")).encode(), "cannot be used"),
        (lambda name: b"[" * 100_000, "no picture"),
        (lambda name: b"{}", "no picture"),
    ],
    ids=["truncated", "bomb", "garbage", "deep", "empty"],
)
def test_answers_that_are_no_picture_fail_with_a_reason(server, name, body, word):
    server.fault = lambda handler, number, fields: handler.reply(body(name)) or True
    outcome = one(server, name)
    assert word in outcome.reason
    assert not isinstance(outcome, RefusedError)
    assert len(server.seen) == 1


@pytest.mark.parametrize("name", ["openai", "ark", "fal"])
def test_a_link_in_an_answer_is_not_followed(server, name):
    link = server.url + "/elsewhere.png"
    body = {"images": [{"url": link}]} if name == "fal" else {"data": [{"url": link}]}
    server.fault = lambda handler, number, fields: handler.reply(body) or True
    assert "is a link" in one(server, name).reason
    assert len(server.seen) == 1


def test_redirects_are_not_followed(server):
    elsewhere = server.url + "/images/generations"
    server.fault = lambda handler, number, fields: handler.reply({}, 307, Location=elsewhere) or True
    assert "redirects" in one(server, "openai").reason
    assert len(server.seen) == 1


def test_an_endless_answer_is_cut_off(server):
    def fault(handler, number, fields):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for _ in range(10_000):
            handler.wfile.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        return True

    server.fault = fault
    assert "too large" in one(server, "gemini", ",max_mb=1").reason
    assert len(server.seen) == 1


def test_a_large_output_of_a_small_image_comes_back_small(server):
    picture = cv2.resize(crop(3, 64, 64), (2048, 2048))
    server.fault = lambda handler, number, fields: (
        handler.reply(answer("gemini", encode_png(picture))) or True
    )
    outcome = one(server, "gemini", image=crop(3, 64, 64))
    assert outcome.image.shape == (64, 64, 3)
    assert mean_error(outcome.image, crop(3, 64, 64)) < 3


def test_pictures_of_other_formats_are_taken(server):
    jpeg = cv2.imencode(".jpg", crop(3)[..., ::-1])[1].tobytes()
    body = {"images": [{"url": "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()}]}
    server.fault = lambda handler, number, fields: handler.reply(body) or True
    outcome = one(server, "fal", image=crop(3))
    assert outcome.meta["format"] == "JPEG"
    assert mean_error(outcome.image, crop(3)) < 8


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("openai:gpt-image-1,size=native", "not a size"),
        ("openai:gpt-image-1,size=big", "not a size"),
        ("gemini:m,size=512", "1K"),
        ("gemini:m,quality=low", "no option 'quality'"),
        ("fal:m,guidance=2", "no option 'guidance'"),
        ("openai:../files", "not a model's name"),
        ("fal:a/../b", "not a model's name"),
        ("ark:a?b=c", "not a model's name"),
        ("openai:gpt-image-1,budget=1", "price="),
        ("openai:gpt-image-1,budget=-1,price=1", "below 0"),
        ("openai:gpt-image-1,base_url=ftp://h", "not the URL"),
        ("openai:gpt-image-1,timeout=0", "out of range"),
        ("openai:gpt-image-1,sise=3", "did you mean 'size'"),
        ("openai", "needs an argument"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(spec, word):
    with pytest.raises(ConfigError, match=word.replace("?", r"\?")):
        open_editor(spec)


def test_addresses_are_the_providers_own_unless_told():
    hosts = {name: open_editor(f"{name}:m").destination for name in NAMES}
    assert hosts == {
        "openai": "api.openai.com",
        "gemini": "generativelanguage.googleapis.com",
        "ark": "ark.ap-southeast.bytepluses.com",
        "fal": "fal.run",
    }
    assert open_editor("fal:m,base_url=http://localhost:9/x").destination is None
