"""Omni IIE Bench from a run's folder to its tables, with small random networks and a transcript."""

from __future__ import annotations

import json
import re
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from skimage.metrics import structural_similarity
from typer.testing import CliRunner

from mie.cli import app
from mie.editors.runs import Run
from mie.judges import JudgeOptions, ParseError
from mie.scoring.benchmarks.omni_iie import pixels
from mie.scoring.benchmarks.omni_iie.pixels import Weights
from mie.scoring.benchmarks.omni_iie.qa import verdicts, veto, written_questions
from mie.scoring.reference import read_output
from tests.judges.server import JudgeServer, texts_of
from tests.scoring.benchmarks.omni_iie.made import SAID, SAMPLES, answer, make_run
from tests.scoring.benchmarks.recorded import transcript
from tests.scoring.benchmarks.runs import lines_of, transformation, write_run, write_samples
from tests.scoring.benchmarks.scoring import omni_iie as score_run

SIDE = 32


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(pixels, "SIDE", SIDE)
    monkeypatch.setenv("MIE_WEIGHTS", str(tmp_path / "no weights"))
    return make_run(tmp_path)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch = pytest.importorskip("torch", reason="perceptual metrics need the extra `models`")
    transformers = pytest.importorskip("transformers", reason="CLIP needs the extra `models`")
    from tokenizers.pre_tokenizers import ByteLevel

    from mie.scoring.metrics.perceptual.lpips import VGG, vgg16

    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(3)
    torch.save({f"features.{n}": t for n, t in vgg16().state_dict().items()}, folder / "vgg.pth")
    linear = {f"lin{at}.model.1.weight": torch.rand(1, n, 1, 1) / 20 for at, n in enumerate(VGG.channels)}
    torch.save(linear, folder / "lpips.pth")
    clip = folder / "clip"
    clip.mkdir()
    letters = sorted(ByteLevel.alphabet())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (clip / "vocab.json").write_text(json.dumps({piece: at for at, piece in enumerate(pieces)}))
    (clip / "merges.txt").write_text("#version: 0.2\n")
    transformers.CLIPTokenizer.from_pretrained(clip, local_files_only=True).save_pretrained(clip)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    end = len(pieces) - 1
    text = {**sizes, "vocab_size": len(pieces), "eos_token_id": end, "bos_token_id": end - 1}
    vision = {**sizes, "image_size": 32, "patch_size": 16}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    transformers.CLIPModel(config).save_pretrained(clip)
    return Weights(str(folder / "vgg.pth"), str(folder / "lpips.pth"), str(clip))


def whole(document):
    return document["groups"][0]["metrics"]


def squares(run, sample):
    """M, O and R at the final size, once more."""
    made = read_output(Run.open(run).output_path(sample.id, 0), "paper")
    both = [
        np.asarray(Image.fromarray(i).resize((SIDE, SIDE), Image.LANCZOS))
        for i in (made, sample.target_image)
    ]
    if sample.mask is None:
        return *both, None
    grey = Image.fromarray((sample.mask > 0).astype(np.uint8) * 255)
    return *both, np.asarray(grey.resize((SIDE, SIDE), Image.NEAREST)) > 128


@lru_cache(maxsize=1)
def networks(weights):
    from mie.scoring.metrics.perceptual import load_clip, load_lpips

    return load_lpips("vgg", trunk=weights.vgg, linear=weights.lpips), load_clip(weights.clip)


def expected(run, sample, variant, weights):
    lpips, clip = networks(weights)
    made, target, region = squares(run, sample)
    out = {"ssim": structural_similarity(made, target, channel_axis=2)}
    for area, kept in (("all", np.ones_like(region)), ("fg", region), ("bg", ~region)):
        on = kept[..., None].astype(np.float32)
        tensors = [(i.astype(np.float32) / 127.5 - 1) * on for i in (made, target)]
        if variant == "as_released" and area != "all":
            tensors = [2 * t - 1 for t in tensors]
        out[f"lpips_{area}"] = lpips(*tensors)
        whole_image = area == "all" or (variant == "as_released" and area == "bg")
        shown = [i if whole_image else i * kept[..., None].astype(np.uint8) for i in (made, target)]
        a, b = clip.images(shown).astype(np.float64)
        out[f"clip_{area}"] = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    return out


@pytest.mark.parametrize("variant", ["paper", "as_released"])
def test_the_transcript_with_networks(run, weights, variant):
    document = score_run(run, variant=variant, judge=transcript("omni_iie"), weights=weights)
    lines = lines_of(run, variant, "omni-iie")
    overall = {}
    for sample in SAMPLES:
        attempt = lines[sample.id]["attempts"][0]
        found = attempt["metrics"]
        if sample.mask is None:
            assert attempt["unscored"]["lpips_fg"] == "the sample has no region mask"
            assert attempt["unscored"]["overall"].startswith("no lpips_fg")
            continue
        wanted = expected(run, sample, variant, weights)
        for name, value in wanted.items():
            assert found[name] == pytest.approx(value, abs=1e-5), name
        verdict = SAID[sample.id]
        if "no" not in verdict and "unclear" in verdict:
            assert attempt["unscored"]["qa"] == "the image does not let the judge tell"
            assert "qa" not in found
            continue
        assert found["qa"] == float(verdict == ["yes"] * len(verdict))
        far = sum(wanted[f"lpips_{area}"] for area in ("all", "fg", "bg"))
        near = sum(wanted[f"clip_{area}"] for area in ("all", "fg", "bg"))
        overall[sample.id] = ((3 - far) / 3 + near / 3 + found["qa"] + wanted["ssim"]) / 4
        assert found["overall"] == pytest.approx(overall[sample.id], abs=1e-5)
    entry = whole(document)["overall@1"]
    assert entry["mean"] == pytest.approx(np.mean(list(overall.values())), abs=1e-5)
    assert (entry["n"], entry["unscored"]) == (len(overall), 2)
    _check_tracks(document, overall)
    header = json.loads((run / f"scores/omni-iie.{variant}.jsonl").open().readline())
    assert len(header["weights"]["lpips"]["weights"]) == 2
    assert (header["side"], header["judge"]["metrics"]) == (SIDE, ["qa", "overall"])
    assert lines["s"]["questions"]["judge"]["prompt"] == "omni_iie_questions@2"
    assert "questions" not in lines["al"]


def _check_tracks(document, overall):
    gaps = [overall[f"{c}l"] - overall[f"{c}h"] for c in "ab"]
    gap = document["scale_gap"]
    assert whole(document)["scale_gap"] == gap
    assert gap["mean"] == pytest.approx(np.mean(gaps), abs=1e-5)
    assert (gap["n"], gap["unscored"]) == (2, 1)  # c has no low score, d no high sample
    low = np.mean([overall["al"], overall["bl"]])
    assert gap["relative_drop"] == pytest.approx(np.mean(gaps) / low, abs=1e-5)
    assert (gap["patients"], gap["ci95"]) == (2, [None, None])  # two patients have no interval
    assert gap["relative_drop_ci95"] == [None, None]
    assert "2 patients" in gap["no_interval"]
    scores = [overall[f"t{n}"] for n in (1, 2, 3, 4)]
    slope = document["turn_slope"]
    assert slope["mean"] == pytest.approx(np.polyfit([1, 2, 3, 4], scores, 1)[0], abs=1e-5)
    assert (slope["n"], slope["fed"]) == (1, "forced")
    assert slope["by_turn"]["03"]["mean"] == pytest.approx(scores[2], abs=1e-5)
    switches = {name: entry["mean"] for name, entry in document["switches"].items()}
    assert switches == pytest.approx({"A→E": scores[1], "E→E": scores[2], "E→A": scores[3]}, abs=1e-5)


def test_without_weights_there_is_no_overall(run):
    document = score_run(run, judge=transcript("omni_iie"))
    found = whole(document)
    for name in ("lpips_all@1", "clip_bg@1", "overall@1"):
        assert (found[name]["n"], found[name]["mean"]) == (0, None)
    assert found["qa@1"]["n"] == 12
    assert found["ssim@1"]["n"] == 13
    attempt = lines_of(run, protocol="omni-iie")["al"]["attempts"][0]
    assert "mie weights get lpips-vgg" in attempt["unscored"]["lpips_fg"]
    assert "no lpips_all: no weights for lpips-vgg" in attempt["unscored"]["overall"]
    assert (document["scale_gap"]["n"], document["scale_gap"]["unscored"]) == (0, 3)
    assert document["scale_gap"]["by_metric"]["qa"]["mean"] == pytest.approx(((1 - 0) + (1 - 1)) / 2)


def test_over_http_and_asked_once_for_the_dataset(run, tmp_path):
    expected = whole(score_run(run, judge=transcript("omni_iie")))
    with JudgeServer(answer) as server:
        options = JudgeOptions(f"openai:tiny,base_url={server.url}")
        assert score_run(run, judge=JudgeOptions(options.spec, dry_run=True))["dry_run"]["calls"] == 6 + 13
        assert whole(score_run(run, judge=options)) == expected
        assert len(server.requests) == 19
        second = tmp_path / "second"
        second.mkdir()
        (run / "judge").rename(second / "judge")  # the dataset's replies stay
        assert whole(score_run(run, judge=options)) == expected
        assert len(server.requests) == 19 + 13


def test_repeats_that_disagree_about_what_can_be_told(run):
    """Each image is judged anew: yes, then unclear; the mean is over the verdicts that could be given."""
    seen = set()

    def wavering(body):
        said = answer(body)
        if "Right answer:" not in " ".join(texts_of(body)):
            return said
        name = json.dumps(body["messages"])
        first = name not in seen
        seen.add(name)
        return said.replace("no,", "yes,") if first else re.sub("yes|no", "unclear", said)

    with JudgeServer(wavering) as server:
        options = JudgeOptions(f"openai:tiny,base_url={server.url}", repeats=2, concurrency=1)
        document = score_run(run, judge=options)
    assert document["judge"]["disagreement"] == {"n": 13, "mean": pytest.approx(0.5, abs=0.1), "largest": 0.5}
    attempt = lines_of(run, protocol="omni-iie")["al"]["attempts"][0]
    assert attempt["metrics"]["qa"] == 1.0
    assert attempt["judge"]["qa"]["repeats"] == 1
    assert attempt["judge"]["qa"]["verdicts"] == [[True], [None]]


def test_the_command(run):
    command = ["score", str(run), "--protocol", "omni-iie"]
    done = CliRunner().invoke(app, [*command, "--judge", transcript("omni_iie").spec])
    assert done.exit_code == 3, done.output
    for words in ("by track", "LPIPS FG", "scale gap", "slope a turn", "A→E", "Qwen-image-edit"):
        assert words in done.output
    document = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert document["groups"][0]["metrics"]["ssim@1"]["n"] == 13
    assert "qa@1" not in document["groups"][0]["metrics"]
    reason = lines_of(run, protocol="omni-iie")["s"]["attempts"][0]["unscored"]["overall"]
    assert "needs a judge" in reason


def test_a_transformation_has_no_foreground(tmp_path, monkeypatch):
    monkeypatch.setattr(pixels, "SIDE", SIDE)
    monkeypatch.setenv("MIE_WEIGHTS", str(tmp_path))
    sample = transformation("t", 5)
    dataset = write_samples([sample], tmp_path / "dataset")
    found = whole(score_run(write_run(tmp_path / "run", dataset, {"t": [sample.target_image]})))
    assert set(found) == {"lpips_all@1", "clip_all@1", "psnr@1", "ssim@1"}
    assert found["psnr@1"]["mean"] == 100


def test_the_benchmarks_own_size():
    assert pixels.SIDE == 768
    image = np.arange(40 * 48 * 3, dtype=np.uint8).reshape(40, 48, 3)
    assert pixels.squared(image, 768).shape == (768, 768, 3)


@given(st.lists(st.sampled_from(["yes", "no", "unclear"]), min_size=1, max_size=3))
def test_the_veto(words):
    text = "\n".join(f"{n}) **{word.capitalize()}**, because no reason" for n, word in enumerate(words, 1))
    found = verdicts(len(words))(text)
    assert found == tuple({"yes": True, "no": False, "unclear": None}[word] for word in words)
    assert veto(found) == (0 if "no" in words else None if "unclear" in words else 1)
    with pytest.raises(ParseError):
        verdicts(len(words) + 1)(text)


def test_written_questions_are_one_to_three():
    assert written_questions('[{"question": "A?", "answer": "b"}]') == [("A?", "b")]
    for wrong in ("[]", '[{"question": "A?"}]', json.dumps([{"question": "A?", "answer": "b"}] * 4)):
        with pytest.raises(ParseError):
            written_questions(wrong)


def test_the_released_means_of_regions_are_weighed_by_area_and_the_papers_are_not(run, weights):
    areas, values = {}, {}
    for sample in SAMPLES:
        if sample.mask is not None:
            region = Image.fromarray((sample.mask > 0).astype(np.uint8) * 255)
            areas[sample.id] = (np.asarray(region.resize((SIDE, SIDE), Image.NEAREST)) > 128).mean()
    for variant in ("paper", "as_released"):
        document = score_run(run, weights=weights, variant=variant)
        means = document["groups"][0]["metrics"]
        lines = lines_of(run, variant, "omni-iie")
        for name, inside in (("lpips_fg", True), ("lpips_bg", False), ("clip_bg", False)):
            values = {i: line["attempts"][0]["metrics"].get(name) for i, line in lines.items()}
            rows = [(v, areas[i] if inside else 1 - areas[i]) for i, v in values.items() if v is not None]
            plain = np.mean([value for value, _ in rows])
            weighed = sum(v * w for v, w in rows) / sum(w for _, w in rows)
            assert abs(plain - weighed) > 1e-6
            expected = weighed if variant == "as_released" else plain
            assert means[f"{name}@1"]["mean"] == pytest.approx(expected)
        assert ("plain" in means["lpips_fg@1"]) == (variant == "as_released")
        assert "plain" not in means["lpips_all@1"]
    about = document["regions"]
    with_mask = [sample for sample in SAMPLES if sample.mask is not None]
    assert about["area"]["all"]["n"] == len(with_mask)
    assert about["area"]["all"]["without_region"] == len(SAMPLES) - len(with_mask)
    assert 0 < about["area"]["level low"]["quartiles"][1] < 1
    # attribute, entity, entity, attribute
    assert about["switches"] == {"A→A": 0, "A→E": 1, "E→A": 1, "E→E": 1}
    assert (about["conversations"], about["turns"], about["most_turns"]) == (1, 4, 4)
