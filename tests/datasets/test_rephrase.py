"""Rephrasing in a build, through the real SDK, against a server on this machine that answers well or ill."""

import json
import re
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import cv2
import pytest
import typer
import yaml
from typer.testing import CliRunner

from mie.cli.build import build as build_verb
from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.recipe import parse_recipe
from mie.datasets.rephrase import Rephrase
from mie.datasets.schema import sample_digest
from mie.datasets.verify import verify
from mie.errors import ConfigError, MieError
from mie.judges import JudgeOptions
from mie.privacy import PrivacyError
from tests import forked_python
from tests.conftest import folder_source, grainy, write_folder
from tests.datasets.test_build import fingerprint
from tests.judges.server import JudgeServer, Say, texts_of


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("source"), 60, patients=20, size=64)


@pytest.fixture(scope="module")
def plain(source, tmp_path_factory):
    """The same build without rephrasing."""
    folder = tmp_path_factory.mktemp("plain") / "dataset"
    build(config(source), folder, workers=1)
    return folder


def config(root):
    return parse_recipe({"name": "discs", "sources": [folder_source(root)]}, where="t", base=Path())


def asked(server, count=3, retries=2, **options):
    spec = f"openai:tiny-judge,base_url={server.url},retries={retries}"
    return Rephrase(JudgeOptions(spec, **options), count)


def sentence_of(body):
    return re.search(r"^Instruction: (.*)$", texts_of(body)[1], re.MULTILINE)[1]


def reworded(sentence):
    lower = sentence[0].lower() + sentence[1:]
    return [f"Kindly {lower}", f"Could you do this: {lower}", f"{sentence[:-1]}, please{sentence[-1]}"]


def well(body):
    return json.dumps({"rephrasings": reworded(sentence_of(body))})


def sentences(folder):
    """Sample id -> its instruction."""
    rows = Dataset(folder).table(["id", "prompt"])
    return dict(zip(rows["id"], rows["prompt"], strict=True))


def shards(folder):
    return {name: digest for name, digest in fingerprint(folder).items() if not name.startswith("judge")}


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "dataset"
    with JudgeServer(well) as server:
        result = build(config(source), folder, workers=1, rephrase=asked(server))
    return folder, result, server.requests


def test_each_distinct_instruction_is_asked_once_and_only_words_are_sent(whole, plain):
    _, _, requests = whole
    told = Counter(map(sentence_of, requests))
    assert set(told) >= set(sentences(plain).values())
    assert set(told.values()) == {1}
    for body in requests:
        assert all(isinstance(message["content"], str) for message in body["messages"])  # no picture
        assert "p0" not in json.dumps(body)  # patients are p00, p01, ...
        assert body["response_format"]["type"] == "json_schema"


def test_a_rephrased_dataset_is_sound_and_says_who_wrote_what(whole, plain):
    folder, result, _ = whole
    assert verify(folder, workers=1).problems == []
    before = sentences(plain)
    samples = list(Dataset(folder).samples())
    assert [s.id for s in samples] == [s.id for s in Dataset(plain).samples()]
    drawn = Counter()
    for sample in samples:
        note = sample.params["rephrased"]
        assert note["sentence"] == before[sample.id]
        assert note["model"] == "tiny-judge-2025-01-01"
        assert (note["prompt"], len(note["sha256"])) == ("rephrase@1", 64)
        drawn[reworded(note["sentence"]).index(sample.prompt)] += 1
        assert "{colour}" in sample.prompt_template
    assert len(drawn) == 3  # every variant is used
    done = result.info["rephrased"]
    assert (done["samples"], done["kept"]) == (len(samples), {})
    assert done["answered_by"] == ["tiny-judge-2025-01-01"]
    assert result.info["recipe"]["rephrase"]["model"] == "tiny-judge"
    assert "tiny-judge-2025-01-01" in (folder / "README.md").read_text()


def test_neither_workers_nor_the_order_of_replies_change_a_byte(source, whole, tmp_path):
    with JudgeServer(lambda body: Say(well(body), delay=0.02 * (len(sentence_of(body)) % 5))) as server:
        build(config(source), tmp_path / "d", workers=3, rephrase=asked(server))
    assert shards(tmp_path / "d") == shards(whole[0])


def test_a_finished_dataset_is_found_again_and_another_wording_is_not_mixed_in(source, whole):
    folder, _, _ = whole
    with JudgeServer(well) as server:
        assert build(config(source), folder, rephrase=asked(server)).already_there
        for other in (asked(server, 2), None):
            with pytest.raises(MieError, match="another dataset"):
                build(config(source), folder, rephrase=other)
        assert server.requests == []
        # What was paid for stays: nothing is asked when the dataset is made afresh.
        before = shards(folder)
        build(config(source), folder, overwrite=True, workers=1, rephrase=asked(server))
        assert server.requests == []
    assert shards(folder) == before


def test_recorded_replies_give_the_same_digest(source, whole, tmp_path):
    folder, result, _ = whole
    (journal,) = (folder / "judge").glob("*.jsonl")
    rephrase = Rephrase(JudgeOptions(f"replay:{journal}"))
    again = build(config(source), tmp_path / "d", workers=1, rephrase=rephrase)
    assert again.info["digest"] == result.info["digest"]
    assert str(journal) not in (tmp_path / "d/dataset.json").read_text()


def colour_of(sentence):
    return re.search("red|green|blue", sentence)[0]


BAD = {
    "colour dropped": lambda s: [s.replace(colour_of(s), "bright")],
    "colour changed": lambda s: [s.replace(colour_of(s), "yellow")],
    "extra colour": lambda s: [f"{s[:-1]} and orange."],
    "number added": lambda s: [f"{s[:-1]} within 3 mm."],
    "target lost": lambda s: [s.replace("optic disc", "disc")],
    "several lines": lambda s: [f"{s}\nThank you."],
    "chatter inside": lambda s: [f"Sure, here is one: {s}"],
    "the same again": lambda s: [s],
}


def test_bad_rephrasings_are_dropped_and_counted(source, plain, tmp_path):
    names = list(BAD)

    def answer(body):
        sentence = sentence_of(body)
        return json.dumps({"rephrasings": BAD[names[len(sentence) % len(names)]](sentence)})

    with JudgeServer(answer) as server:
        result = build(config(source), tmp_path / "d", workers=1, rephrase=asked(server))
    assert sentences(tmp_path / "d") == sentences(plain)  # the templates' words, all of them
    done = result.info["rephrased"]
    assert done["samples"] == 0
    assert sum(done["kept"].values()) == len(sentences(plain))
    assert set(done["kept"]) >= {"colour", "entity", "form", "same", "number"}
    assert verify(tmp_path / "d", workers=1).problems == []
    for sample in Dataset(tmp_path / "d").samples():
        assert set(sample.params["rephrased"]) == {"reason"}
    told = Counter(map(sentence_of, server.requests))
    assert set(told.values()) == {2}  # once, and once with what was wrong
    assert any("is missing" in text for body in server.requests for text in texts_of(body)[3:])


def test_one_good_rephrasing_among_bad_ones_is_enough(source, tmp_path):
    def answer(body):
        sentence = sentence_of(body)
        texts = [BAD["colour changed"](sentence)[0], reworded(sentence)[0], BAD["number added"](sentence)[0]]
        return (
            f"Of course! Here they are:\n```json\n{json.dumps({'rephrasings': texts})}\n```\nAnything else?"
        )

    with JudgeServer(answer) as server:
        done = build(config(source), tmp_path / "d", workers=1, rephrase=asked(server)).info["rephrased"]
    assert (done["kept"], done["dropped_rephrasings"]) == (
        {},
        {"colour": done["sentences"], "number": done["sentences"]},
    )
    assert all(prompt.startswith("Kindly ") for prompt in sentences(tmp_path / "d").values())


def test_transformations_keep_their_numbers(tmp_path):
    """One reply in two changes a number; those sentences stay as the template has them."""
    root = write_folder(tmp_path / "scans", 16, size=64)
    for n, path in enumerate(sorted((root / "images").iterdir())):
        cv2.imwrite(str(path), grainy(cv2.imread(str(path), 0), n))
    body = {
        "name": "scans",
        "recipe": {"kind": "transformation", "targets": ["super_resolution", "mri_undersampling"]},
        "sources": [folder_source(root, modality="MRI", anatomy="brain")],
    }
    recipe = parse_recipe(body, where="t", base=Path())
    build(recipe, tmp_path / "plain", workers=1)

    def answer(body):
        sentence = sentence_of(body)
        if len(sentence) % 2:
            return json.dumps({"rephrasings": [re.sub(r"\d+", "7", text) for text in reworded(sentence)]})
        return well(body)

    with JudgeServer(answer) as server:
        done = build(recipe, tmp_path / "d", workers=1, rephrase=asked(server)).info["rephrased"]
    assert done["samples"] > 3
    assert done["kept"]["number"] > 3
    assert verify(tmp_path / "d", workers=1).problems == []
    before = sentences(tmp_path / "plain")
    for sample in Dataset(tmp_path / "d").samples():
        numbers = re.findall(r"\d+", before[sample.id])
        assert re.findall(r"\d+", sample.prompt) == numbers
        if numbers and len(before[sample.id]) % 2:
            assert sample.params["rephrased"]["reason"].startswith("number")


def test_refusals_filters_cuts_and_prose_are_reasons_and_rate_limits_are_waited_for(source, tmp_path):
    seen = Counter()

    def answer(body):
        sentence = sentence_of(body)
        seen[sentence] += 1
        kind = len(sentence) % 5
        if kind == 0 and seen[sentence] == 1:
            return Say(
                status=429, headers={"retry-after-ms": "10"}, body='{"error": {"message": "slow down"}}'
            )
        if kind == 1:
            return Say("", refusal="I cannot help with medical images.")
        if kind == 2:
            return Say('{"rephrasings": ["Pai', finish="length")
        if kind == 3:
            return "I would say: paint it nicely."
        return well(body)

    with JudgeServer(answer) as server:
        result = build(config(source), tmp_path / "d", workers=1, rephrase=asked(server))
    kept = result.info["rephrased"]["kept"]
    assert set(kept) == {"judge refused", "judge truncated", "form"}
    for sample in Dataset(tmp_path / "d").samples():
        note = sample.params["rephrased"]
        kind = len(note.get("sentence", sample.prompt)) % 5
        assert ("sentence" in note) == (kind in (0, 4))
        if kind == 1:
            assert note == {"reason": "judge refused"}
    assert verify(tmp_path / "d", workers=1).problems == []


def test_a_judge_that_is_silent_stops_the_build_and_the_same_command_goes_on(source, whole, tmp_path):
    with JudgeServer(well) as server:
        port = server.port
        gone = asked(server, retries=0)
    with pytest.raises(MieError, match="answered no question"):
        build(config(source), tmp_path / "d", workers=1, rephrase=gone)
    assert not (tmp_path / "d/dataset.json").exists()
    with JudgeServer(well, port=port) as server:
        build(config(source), tmp_path / "d", workers=1, rephrase=asked(server))
    assert shards(tmp_path / "d") == shards(whole[0])


def test_no_key_is_found_out_before_any_image_is_read(source, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    remote = JudgeOptions("openai:gpt-4o")
    with pytest.raises(PrivacyError, match="words would be sent to another machine"):
        build(config(source), tmp_path / "d", rephrase=Rephrase(remote))
    with pytest.raises(ConfigError, match="no key"):
        build(config(source), tmp_path / "d", rephrase=Rephrase(replace(remote, allow_remote=True)))
    with pytest.raises(ConfigError, match="no judge named"):
        build(config(source), tmp_path / "d", rephrase=Rephrase(JudgeOptions("opnai:gpt-4o")))
    assert not (tmp_path / "d/parts").exists()


def test_a_changed_instruction_is_found_by_verify(whole):
    from dataclasses import replace

    from mie.datasets.verify import check_sample

    sample = next(iter(Dataset(whole[0]).samples()))
    assert check_sample(sample) == []
    other = replace(sample, prompt=f"{sample.prompt[:-1]} on the left.")
    assert sample_digest(other) != sample_digest(sample)
    ((check, reason),) = check_sample(other)
    assert (check, "side" in reason) == ("prompt", True)


# The command.


@pytest.fixture
def recipe(source, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"name": "discs", "sources": [folder_source(source)]}))
    return path


def command(recipe, folder, server):
    words = ["build", recipe, "-o", folder, "--workers", "1", "--no-stats", "--json"]
    words += ["--rephrase", f"openai:tiny-judge,base_url={server.url}"]
    return [sys.executable, "-m", "mie", *map(str, words)]


def test_killed_while_asking_it_asks_nothing_twice_and_ends_with_the_same_bytes(recipe, whole, tmp_path):
    folder = tmp_path / "dataset"
    with JudgeServer(lambda body: Say(well(body), delay=0.25)) as server:
        process = forked_python.Started(command(recipe, folder, server))
        end = time.monotonic() + 60
        # 16 calls at a time: with the 20th request the first replies are there, and others under way.
        while len(server.requests) < 20 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        assert process.poll() is None
        process.kill()
        safe, before = journal_keys(folder), len(server.requests)
        done = forked_python.run(command(recipe, folder, server))
        assert done.returncode == 0, done.stderr
        asked_again = {f"rephrase/3:{sentence_of(body)}" for body in server.requests[before:]}
    assert safe
    assert asked_again
    assert not asked_again & safe
    assert shards(folder) == shards(whole[0])
    assert json.loads(done.stdout)["rephrased"]["kept"] == {}


def journal_keys(folder):
    found = set()
    for path in (folder / "judge").glob("*.jsonl"):
        lines = path.read_bytes().split(b"\n")[:-1]  # what stands behind the last line's end is torn
        found |= {json.loads(line)["key"] for line in lines}
    return found


def invoke(recipe, folder, *more):
    app = typer.Typer()
    app.command()(build_verb)
    words = [recipe, "-o", folder, "--workers", "1", "--no-stats", "--json", *more]
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def test_dry_run_cost_limit_and_exit_codes(recipe, plain, tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("tiny-judge: {input: 1000, output: 0}\n")
    folder = tmp_path / "dataset"
    with JudgeServer(lambda body: Say(well(body), usage=(200, 0))) as server:
        judge = ("--rephrase", f"openai:tiny-judge,base_url={server.url}")
        dry = invoke(recipe, folder, *judge, "--rephrase-dry-run", "--prices", prices)
        assert dry.exit_code == 0
        found = json.loads(dry.stdout)["dry_run"]
        assert found["calls"] >= len(set(sentences(plain).values()))
        assert found["cost_usd"] > 0
        assert server.requests == []
        assert not (folder / "dataset.json").exists()
        limited = invoke(recipe, folder, *judge, "--cost-limit", "3", "--prices", prices)
        assert limited.exit_code == 3
        assert "did not answer" in limited.stderr
        kept = json.loads(limited.stdout)["rephrased"]["kept"]
        assert set(kept) == {"judge over_budget"}
        assert 1 <= len(server.requests) <= 15  # 0.2 dollars each
        whole = invoke(recipe, folder, *judge, "--overwrite")
        assert whole.exit_code == 0
        assert json.loads(whole.stdout)["rephrased"]["kept"] == {}
        assert set(Counter(map(sentence_of, server.requests)).values()) == {1}
    with pytest.raises(ConfigError, match="needs a judge"):
        invoke(recipe, folder, "--rephrase-dry-run")
    with pytest.raises(ConfigError, match="not rephrased"):
        invoke(folder, tmp_path / "reviewed", "--apply-reviews", "x.sqlite", "--rephrase", "replay:x")
