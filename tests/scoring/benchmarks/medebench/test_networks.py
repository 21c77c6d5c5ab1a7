"""MedEBench's baseline metrics through a run: with small random networks, and without any."""
# ruff: noqa: E402 - what needs PyTorch is imported after the question whether it is there

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="perceptual metrics need the extra `models`")
transformers = pytest.importorskip("transformers", reason="CLIP needs the extra `models`")

from PIL import Image
from tokenizers.pre_tokenizers import ByteLevel

from mie.editors.runs import Run
from mie.judges import JudgeOptions
from mie.report.agreement import correlation_table
from mie.scoring.benchmarks import BENCHMARKS
from mie.scoring.benchmarks.medebench.networks import METRICS, NO_DESCRIPTION, Weights, setup
from mie.scoring.benchmarks.medebench.score import set_distance
from mie.scoring.metrics.perceptual import (
    FeatureStatistics,
    cosine,
    directional,
    fid,
    load_clip,
    load_image_reward,
    load_lpips,
    signed,
    unit,
)
from mie.scoring.metrics.perceptual.lpips import ALEX, alexnet
from mie.scoring.reference import read_output
from mie.scoring.score import score_run
from mie.scoring.scores import read_score_table
from mie.scoring.statistics.agreement import agree_on_all
from tests.judges.server import JudgeServer, texts_of
from tests.scoring.benchmarks.medebench.made import SAMPLES, answer, attempt_at, make_run
from tests.scoring.benchmarks.runs import lines_of, write_run
from tests.scoring.metrics.perceptual.test_image_reward import make_weights

MEDEBENCH = BENCHMARKS["medebench"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Weights:
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(3)
    torch.save({f"features.{n}": t for n, t in alexnet().state_dict().items()}, folder / "alex.pth")
    linear = {f"lin{at}.model.1.weight": torch.rand(1, n, 1, 1) for at, n in enumerate(ALEX.channels)}
    torch.save(linear, folder / "lpips.pth")
    clip = folder / "clip"
    clip.mkdir()
    letters = sorted(ByteLevel.alphabet())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (clip / "vocab.json").write_text(json.dumps({piece: at for at, piece in enumerate(pieces)}))
    (clip / "merges.txt").write_text("#version: 0.2\n")
    transformers.CLIPTokenizer.from_pretrained(clip, local_files_only=True).save_pretrained(clip)
    end = len(pieces) - 1
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**sizes, "vocab_size": len(pieces), "eos_token_id": end, "bos_token_id": end - 1}
    vision = {**sizes, "image_size": 64, "patch_size": 32}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    transformers.CLIPModel(config).save_pretrained(clip)
    reward = make_weights(folder / "image-reward")
    return Weights(
        *(str(folder / name) for name in ("alex.pth", "lpips.pth", "clip")),
        str(reward),
        str(folder / "no inception"),
    )


@pytest.fixture(scope="module")
def scored(weights, tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("run"))
    return run, {
        variant: score_run(MEDEBENCH, run, variant=variant, setup=setup(weights))
        for variant in ("paper", "as_released")
    }


def outputs(run):
    for sample in SAMPLES:
        height, width = sample.input.shape[:2]
        pixels = read_output(Run.open(run).output_path(sample.id, 0), "paper")
        yield sample, np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("variant", ["paper", "as_released"])
def test_every_number_is_that_of_its_network(scored, weights, variant):
    run, _ = scored
    lpips = load_lpips("alex", trunk=weights.alex, linear=weights.lpips)
    clip, reward = load_clip(weights.clip), load_image_reward(weights.image_reward)
    scale, fit = (unit, "squash") if variant == "as_released" else (signed, "crop")
    lines = lines_of(run, variant, "medebench")
    for sample, output in outputs(run):
        attempt = lines[sample.id]["attempts"][0]
        values, reasons = attempt["metrics"], attempt["unscored"]
        pair = scale(output), scale(sample.target_image)
        assert values["lpips"] == pytest.approx(lpips(*pair), abs=1e-5)
        images = [sample.input, sample.target_image, output]
        before, target, after = clip.images(images, fit=fit)
        assert values["isim"] == pytest.approx(cosine(after, target), abs=1e-5)
        for ending, words in (("", sample.description), ("_plain", sample.prompt)):
            names = [f"{name}{ending}" for name in ("talign", "dalign", "image_reward")]
            if not words:
                assert [reasons[name] for name in names] == [NO_DESCRIPTION] * 3
                continue
            read = clip.texts([words])[0]
            expected = [cosine(after, read), directional(before, after, read), reward(output, words)]
            assert [values[name] for name in names] == pytest.approx(expected, abs=1e-4)


class Colours:
    """In place of Inception, whose 2,048 features take seconds: the mean of each colour."""

    def features(self, images):
        yield np.stack([image.mean(axis=(0, 1)) for image in images]).astype(np.float32)


def test_fid_is_that_of_all_first_attempts(scored):
    run, documents = scored
    assert list(documents["paper"]["not_measured"]) == ["fid"]
    table = read_score_table(run / "scores/medebench.paper.jsonl")
    entry = set_distance(Colours(), Run.open(run), table)
    sets = [FeatureStatistics(), FeatureStatistics()]
    for sample, output in outputs(run):
        for statistics, image in zip(sets, (output, sample.target_image), strict=True):
            statistics.add(image.mean(axis=(0, 1), keepdims=True)[0])
    assert entry["mean"] == pytest.approx(fid(*sets), rel=1e-4)
    assert (entry["n"], entry["unscored"], entry["ci95"]) == (5, 0, None)
    assert entry["patients"] + entry["images_without_patient"] > 0


def test_without_weights_nothing_of_them_applies_and_the_document_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("MIE_WEIGHTS", str(tmp_path / "none"))
    document = score_run(MEDEBENCH, make_run(tmp_path))
    names = {name for found in METRICS.values() for name in found}
    assert set(document["not_measured"]) == names
    assert "mie weights get lpips-alex" in document["not_measured"]["lpips"]
    assert not any(key.partition("@")[0] in names for key in document["groups"][0]["metrics"])


def test_the_set_context_asks_for_preservation_too(tmp_path, monkeypatch):
    monkeypatch.setenv("MIE_WEIGHTS", str(tmp_path / "none"))
    run = make_run(tmp_path)

    def reply(body):
        said = answer(body)
        assert "Contextual Preservation" in texts_of(body)[0] or "Editing Accuracy" not in said
        return said.replace("**Visual", "Contextual Preservation: 9/10\n**Visual")

    with JudgeServer(reply) as server:
        options = JudgeOptions(f"openai:tiny,base_url={server.url}", prompts="context")
        document = score_run(MEDEBENCH, run, judge=options)
    means = document["groups"][0]["metrics"]
    assert means["cp_judge_plain@1"]["mean"] == pytest.approx(0.9)
    assert means["cp_judge@1"]["n"] + means["cp_judge@1"]["unscored"] == 5
    assert document["judge"]["prompt_set"]["name"] == "context"
    assert len(document["judge"]["prompt_set"]["digest"]) == 64
    journal = next((run / "judge").glob("*.jsonl")).read_text().splitlines()
    assert {json.loads(line)["prompt_set"] for line in journal} == {"context"}


def test_the_papers_table_has_seventeen_metrics_against_three_criteria(weights, tmp_path):
    one = make_run(tmp_path)
    outputs_of_two = {sample.id: [attempt_at(sample, 30 + n)] for n, sample in enumerate(SAMPLES)}
    two = write_run(tmp_path / "two", Run.open(one).dataset(), outputs_of_two)
    with JudgeServer(lambda body: f"{answer(body)}Contextual Preservation: 9/10\n") as server:
        options = JudgeOptions(f"openai:tiny,base_url={server.url}", prompts="context")
        for run in (one, two):
            score_run(MEDEBENCH, run, judge=options, setup=setup(weights))
    ratings = ["sample_id,rater,run,criterion,rank"]
    for sample in SAMPLES:
        for criterion in ("EA", "CP", "VQ"):
            ratings += [f"{sample.id},A,{run.name},{criterion},{rank}" for rank, run in ((1, one), (2, two))]
    (tmp_path / "ratings.csv").write_text("\n".join(ratings))
    document = agree_on_all([one, two], tmp_path / "ratings.csv", benchmark="medebench")
    heads, body = correlation_table(document)
    assert heads == ["Metric", *(f"{c}{kind}" for c in ("EA", "CP", "VQ") for kind in ("", " (models)"))]
    judged = {"ea", "vq", "cp_judge", "ea_plain", "vq_plain", "cp_judge_plain"}
    networks = {"lpips", "isim", "talign", "dalign", "image_reward"}
    plain = {"talign_plain", "dalign_plain", "image_reward_plain"}
    assert {line[0] for line in body} == judged | networks | plain | {"cp", "psnr", "ssim"}
    assert len(body) == 17
