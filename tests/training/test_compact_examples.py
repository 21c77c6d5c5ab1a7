"""The scripts that say what the compact editor is worth: tables of its runs, and what eight bits cost."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import pytest
from matplotlib.text import Text
from skimage.metrics import peak_signal_noise_ratio

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")
pytest.importorskip("transformers", reason="training needs the extra `models`")

import torch

from mie.datasets.dataset import Dataset
from mie.networks.compact import load_weights
from mie.records import Sample
from mie.training import compact
from mie.training.checkpoints import checkpoints, read_ema
from mie.training.loop import train
from mie.training.pack import VALIDATION
from mie.vocabulary import MODALITIES
from tests.conftest import crop, ellipse
from tests.training import compact_tiny
from tests.training.compact_tiny import Encoder, compact_config, tiny_pack, write_tiny_pack
from tests.training.conftest import painted, write_samples

FOLDER = Path(__file__).parents[2] / "examples/compact"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))  # scripts find their neighbours there
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return script("tables", monkeypatch)


def lines_of(text: str, heading: str) -> dict[str, list[str]]:
    """The cells of the table beneath a heading, by the first one."""
    part = text.split(f"{heading}\n\n", 1)[1].split("\n\n", 1)[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines()]
    return {line[0]: line[1:] for line in cells}


def changed(number: int, task: str, split: str = "test") -> tuple[Sample, np.ndarray]:
    """A modification of an ellipse, and the ellipse."""
    (like,) = painted(range(number, number + 1), classes=1, split=split)
    healthy, area = np.minimum(crop(number), 250), ellipse(number)
    before = healthy.copy()
    before[area] = 255 if task == "inpainting" else 250 - before[area]
    facts = {"perspective": "modification", "task": task, "colour": None, "id": f"{task}{number}"}
    mask = np.where(area, 255, 0).astype(np.uint8)
    return replace(like, input=before, target_image=healthy, mask=mask, **facts), area


def test_one_command_makes_the_runs_and_the_tables(
    tables: ModuleType, overlays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    plot = tmp_path / "plot.png"
    command = ["make", str(overlays), "--runs", str(tmp_path / "runs"), "--editor", "oracle", "-o", str(page)]
    command += ["--plot", str(plot)]
    monkeypatch.setattr(sys, "argv", ["tables.py", *command])
    tables.main()
    assert min(cv2.imread(str(plot)).std(axis=(0, 1))) > 10, "there is something to see"
    text = page.read_text()
    assert text.startswith(f"before\n{tables.BEGIN}\n")
    assert text.endswith(f"{tables.END}\nafter\n")
    assert "old" not in text
    found = lines_of(text, "### Perception: DICE")
    # 40 and 2 images of one patient each; structure, lesions, structure, and all three at once.
    assert found["data set"] == [
        "training samples",
        "samples",
        "patients",
        "identity",
        "otsu",
        "kmeans",
        "oracle",
    ]
    trained, samples, patients, identity, _, _, oracle = found["test"]
    assert (trained, samples, patients) == (str(20 * int(samples)), samples, "2")
    assert (identity, oracle) == ("0.000", "1.000"), "two patients are too few for an interval"
    assert lines_of(text, "### Perception: background PSNR, dB")["test"][-1].startswith("100.0")
    assert (tmp_path / "runs/overlays/otsu/run.json").is_file()
    tables.main()
    assert page.read_text() == text, "a second time finds the runs and says the same"


def test_modification_is_measured_inside_and_outside_its_area(tables: ModuleType, tmp_path: Path) -> None:
    made = [changed(4 * n, "inpainting") for n in range(3)] + [changed(41, "removal")]
    samples = [sample for sample, _ in made]
    folder = write_samples([*samples, changed(80, "removal", "train")[0]], tmp_path / "modified")
    benches = tables.read(tables.make([folder], tmp_path / "runs", "oracle"))
    text = tables.page(benches)
    found = lines_of(text, "### Modification: PSNR in the area that changes, dB")
    assert found["kind"] == ["training samples", "samples", "patients", "identity", "telea", "oracle"]
    psnr = [
        10 * np.log10(255**2 / ((s.input[area].astype(float) - s.target_image[area]) ** 2).mean())
        for s, area in made[:3]
    ]
    assert found["inpainting"][3].startswith(f"{np.mean(psnr):.2f} (")
    assert found["inpainting"][5] == "100.00 (100.00 to 100.00)"
    assert found["removal"] == ["1", "1", "1", *found["removal"][3:]]
    assert found["removal"][4] == "none of 1 scored", "Telea finds no hole to fill"
    assert found["**mean over samples**"][4].endswith(", 3 of 4")
    (record,) = [r for r in benches[0].records["telea"] if r["id"] == "inpainting0"]
    filled = cv2.imread(str(benches[0].runs["telea"].output_path("inpainting0", 0)))[..., ::-1]
    sample, area = made[0]
    inside = ((filled[area].astype(float) - sample.target_image[area]) ** 2).mean()
    assert record["scores"]["psnr"] == pytest.approx(10 * np.log10(255**2 / inside))
    assert record["scores"]["gain_psnr"] == pytest.approx(record["scores"]["psnr"] - psnr[0])
    assert record["scores"]["b_psnr"] == 100
    assert lines_of(text, "### Modification: background SSIM")["inpainting"][4].startswith("1.000")


def test_confidence_is_set_beside_dice(tables: ModuleType) -> None:
    def record(number: int, sure: float | None, **scores: float) -> dict[str, Any]:
        known = number < 4
        return {
            "id": str(number),
            "patient": f"p{number // 2 if known else number}",
            "patient_known": known,
            "confidence": sure,
            "scores": scores,
        }

    values = ((0.1, 0.0), (0.2, 0.3), (0.95, 0.8), (1.0, 0.7), (0.9, 0.9))
    records = [record(n, sure, dice=dice) for n, (sure, dice) in enumerate(values)]
    text, _, *lines, _ = tables.confidence([*records, record(5, None, dice=0.5), record(6, 0.5, psnr=9)])
    # Ranks 1 2 4 5 3 and 1 2 4 3 5: 1 - 6 * (4 + 4) / (5 * 24).
    assert text.startswith("Spearman's correlation of confidence and DICE over 5 samples: 0.60 (")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[2] == ["0 to 0.3", "2", "1", "0.150"]
    assert cells[3] == ["0.3 to 0.5", "0", "0", "–"]
    assert cells[6] == ["0.9 to 1", "3", "1 + 1 image", "0.800"]
    assert tables.confidence(records[:1]) == []


def test_gains_are_over_the_input(tables: ModuleType, tmp_path: Path) -> None:
    samples = []
    for number, split in ((0, "test"), (1, "test"), (2, "train")):
        (like,) = painted(range(number, number + 1), classes=1, split=split)
        noise = np.random.default_rng(number).normal(0, 20, like.input.shape)
        noisy = np.clip(like.input + noise, 0, 255).astype(np.uint8)
        facts = {"perspective": "transformation", "task": "denoising", "target": "noise", "mask": None}
        samples.append(replace(like, input=noisy, target_image=like.input, colour=None, **facts))
    folder = write_samples(samples, tmp_path / "noisy")
    (bench,) = tables.read(tables.make([folder], tmp_path / "runs", "oracle"))
    gains = []
    for sample in samples[:2]:
        made = cv2.imread(str(tmp_path / f"runs/noisy/bilateral/outputs/{sample.id}_0.png"))[..., ::-1]
        gains.append(
            peak_signal_noise_ratio(sample.target_image, made)
            - peak_signal_noise_ratio(sample.target_image, sample.input)
        )
    assert [r["scores"]["gain_psnr"] for r in bench.records["bilateral"]] == pytest.approx(gains)
    found = lines_of(tables.page([bench]), "### Transformation: PSNR gained over the input, dB")
    assert found["noise"][:4] == ["1", "2", "2", "0.00"]
    assert found["noise"][5] == f"{np.mean(gains):.2f}"


def record(n: int, perspective: str, scores: dict[str, float], **facts: Any) -> dict[str, Any]:
    like = {"id": f"{n}", "patient": f"p{n}", "source": "test", "task": "lesion", "target": "noise"}
    known = {"patient_known": True, "modality": "MRI", "confidence": None}
    return {**like, **known, "perspective": perspective, "scores": scores, **facts}


def test_bars_are_of_what_was_trained_on(
    tables: ModuleType, overlays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = [{"dice": 0.9, "p_acc": 1.0, "b_psnr": b} for b in (100.0, 30.0)]
    records = [record(n, "perception", scores) for n, scores in enumerate(good)]
    records.append(record(2, "perception", {"dice": 0.1, "p_acc": 0.0, "b_psnr": 10.0}, source="elsewhere"))
    records += [
        record(n, "transformation", {"gain_psnr": gain, "gain_ssim": 0.1}, target=target)
        for n, (gain, target) in enumerate(
            ((4.0, "noise"), (2.5, "streaks"), (9.0, "never trained")), start=3
        )
    ]
    bench = tables.Bench(Dataset(overlays), {}, {"compact": records})
    counts = {"perception": {"test": 40}, "transformation": {"noise": 1, "streaks": 1}}
    monkeypatch.setattr(tables.Bench, "trained", lambda _, kind: Counter(counts[kind]))
    found = {line[0]: line[1:] for line in tables.bars(bench, "compact")}
    assert found["DICE, mean over data sets"][1:] == ["0.900", "yes"]
    assert found["DICE, mean over samples"][1:] == ["0.900", "yes"]
    assert found["background PSNR, mean over samples, dB"][2] == "yes"
    assert "; 30.00 without 1 exact ones" in found["background PSNR, mean over samples, dB"][1]
    assert found["noise, dB gained"][1:] == ["4.00; SSIM +0.100", "yes"]
    assert found["streaks, dB gained"][2] == "**no**"
    assert len(found) == 6


def test_unseen_wordings_are_held_against_seen_ones(tables: ModuleType, tmp_path: Path) -> None:
    dice = {True: (0.8, 0.6, 0.5), False: (0.7, 0.6)}  # the third has no wording that was held out
    records = [
        record(n, "perception", {"dice": value}, seen=seen)
        for seen, values in dice.items()
        for n, value in enumerate(values)
    ]
    (tmp_path / "scores.json").write_text(json.dumps({"records": records}))
    ((title, most, lost, met),) = tables.wordings(tmp_path / "scores.json")
    assert title == "DICE lost by unseen wordings, mean over 2 samples of perception"
    assert (most, met) == ("at most 0.02", "**no**")
    assert lost == "0.050"


class Scored:
    """As much of a run as the tables ask for."""

    def __init__(self, sha256: str | None) -> None:
        self.info = {"editor": {"meta": {"weights_sha256": sha256} if sha256 else {}}}


def test_runs_of_different_weights_are_not_mixed(tables: ModuleType, overlays: Path) -> None:
    def bench(name: str, sha256: str) -> Any:
        records = [record(0, "perception", {"dice": 0.5, "p_acc": 0.0, "b_psnr": 40.0})]
        runs = {"identity": Scored(None), name: Scored(sha256)}
        return tables.Bench(Dataset(overlays), runs, {"identity": records, name: records})

    text = tables.page([bench("compact", "a" * 64), bench("compact", "a" * 64)])
    assert text.count("## Bars: compact") == 1
    assert f"SHA-256 `{'a' * 16}...`" in text
    for name in ("compact", "other"):  # also where the folders have one name
        with pytest.raises(SystemExit, match=f"different weights[\\s\\S]*{'b' * 16}... {name} on overlays"):
            tables.page([bench("compact", "a" * 64), bench(name, "b" * 64)])


def test_images_are_not_counted_as_patients_without_saying_so(tables: ModuleType, overlays: Path) -> None:
    scores = {"dice": 0.5, "p_acc": 0.0, "b_psnr": 40.0}
    facts = [("named", "p1", True), ("named", "p1", True), ("mixed", "p2", True), ("mixed", "i1", False)]
    facts += [("unnamed", "i2", False), ("unnamed", "i3", False)]
    records = [
        record(n, "perception", scores, source=source, patient=patient, patient_known=known)
        for n, (source, patient, known) in enumerate(facts)
    ]
    text = tables.page([tables.Bench(Dataset(overlays), {}, {"compact": records})])
    cells = lines_of(text, "### Perception: DICE")
    patients = {source: cells[source][2] for source in ("named", "mixed", "unnamed")}
    assert patients == {"named": "1", "mixed": "1 + 1 image", "unnamed": "2 images"}
    assert cells["**mean over samples**"][2] == "2 + 3 images"
    assert "does not name its patients" in text


def test_every_modality_has_its_own_colour_and_mark_and_text_can_be_read(
    tables: ModuleType, overlays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plots = script("plots", monkeypatch)
    records = [
        record(n, "perception", {"dice": 0.1 * n}, source=f"set{n}", modality=modality)
        for n, modality in enumerate(MODALITIES)
    ]
    records += [record(20, "transformation", {"gain_psnr": 4.0}, target="noise")]
    bench = tables.Bench(Dataset(overlays), {}, {"compact": records})
    counts = {"perception": {f"set{n}": n + 1 for n in range(10)}, "transformation": {"noise": 1}}
    monkeypatch.setattr(tables.Bench, "trained", lambda _, kind: Counter(counts[kind]))
    figure = plots.figure_of([bench], "compact")
    points = figure.axes[0].collections[: len(MODALITIES)]
    assert len({tuple(one.get_facecolor()[0]) for one in points}) == len(MODALITIES)
    assert len({one.get_paths()[0].vertices.tobytes() for one in points}) == len(MODALITIES)
    figure.canvas.draw()
    shrunk = min(1.0, 800 / (figure.get_figwidth() * figure.dpi))
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert len(texts) > 20
    assert min(text.get_fontsize() * figure.dpi / 72 * shrunk for text in texts) >= 10


def test_what_has_no_number_is_said(tables: ModuleType) -> None:
    assert tables.cell(None, 3, 4) == "none of 4 scored"
    one = {"mean": 0.5, "low": None, "high": None, "rows": 3}
    assert tables.cell(one, 2, 4) == "0.50, 3 of 4"
    assert tables.cell({**one, "low": 0.4, "high": 0.6}, 2, 3) == "0.50 (0.40 to 0.60)"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A training of four steps with a checkpoint at two, and its pack."""
    root = tmp_path_factory.mktemp("quantised")
    pack = write_tiny_pack(root / "pack")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIE_CACHE", str(root / "cache"))
        patch.setattr(compact, "TextEncoder", Encoder)
        patch.setattr("mie.training.compact_data.SIDE", compact_tiny.SMALL)
        patch.setattr("mie.training.compact_data.LARGE", 2 * compact_tiny.SMALL)
        config = compact_config(pack, checkpoint={"every": 2, "keep": 2}, validate={"every": 2})
        assert train(config, root / "out", device="cpu").complete
    return root / "out", pack


def test_float_and_int8_on_the_validation_rows(
    trained: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, pack = trained
    quantised = script("quantised", monkeypatch)
    monkeypatch.setattr(quantised, "TextEncoder", Encoder)
    command = ["quantised.py", str(out), str(pack), "--device", "cpu", "-o", str(tmp_path / "found.json")]
    monkeypatch.setattr(sys, "argv", command)
    quantised.main()
    found = json.loads((tmp_path / "found.json").read_text())["figures"]
    assert [one["figure"] for one in found] == ["DICE", "gain, dB"]
    for one in found:
        assert one["lost"]["mean"] == pytest.approx(one["float"]["mean"] - one["int8"]["mean"])
        assert one["unscored"] == 0
    held = [row for row in tiny_pack().rows if row.fold == VALIDATION]
    twice = [row for row in held if tiny_pack().instructions[row.instruction].held_out]
    assert sum(one["edits"] for one in found) == len(held) + len(twice)
    assert "| DICE |" in capsys.readouterr().out


def test_the_float_weights_are_those_that_the_file_was_made_of(
    trained: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = trained
    quantised = script("quantised", monkeypatch)
    state, _, meta = load_weights(out / "weights.safetensors")
    exact = quantised.float_weights(out, [meta["step"]])
    assert set(exact) == set(state)
    differ = {name: float((exact[name] - state[name]).abs().max()) for name in state}
    assert max(differ.values()) > 0, "eight bits are not the float weights"
    assert all(value <= 0.01 * float(exact[name].abs().max()) + 1e-6 for name, value in differ.items())
    (_, first), (_, second) = checkpoints(out / "checkpoints")
    mean = quantised.float_weights(out, [2, 4])
    name = next(name for name in mean if name.endswith("weight"))
    assert torch.allclose(mean[name], (read_ema(first)[name] + read_ema(second)[name]) / 2)


def test_the_mean_of_checkpoints_keeps_the_network_and_says_what_made_it(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = trained
    folders = [folder for _, folder in checkpoints(out / "checkpoints")]
    command = ["average.py", *map(str, folders), "-o", str(tmp_path / "mean.safetensors")]
    monkeypatch.setattr(sys, "argv", command)
    script("average", monkeypatch).main()
    state, config, meta = load_weights(tmp_path / "mean.safetensors")
    assert config == load_weights(out / "weights.safetensors")[1]
    assert meta["mean_of"] == [folder.name for folder in folders]
    assert meta["config"]["steps"] == 4
    assert meta["data_digests"]["packs"]
    assert str(out.parent) not in json.dumps(meta)
    exact = script("quantised", monkeypatch).float_weights(out, [2, 4])
    assert all((state[n] - exact[n]).abs().max() <= 0.01 * exact[n].abs().max() + 1e-6 for n in exact)


def test_a_loss_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs of the tiny pack are negatives: inverting is perfect, doing nothing gains nothing."""
    quantised = script("quantised", monkeypatch)
    pack = tiny_pack()
    rows = [(pack, row) for row in pack.rows if row.perspective == "transformation"]
    (one,) = quantised.compare(rows, lambda rs: [255 - r.image for r in rs], lambda rs: [r.image for r in rs])
    before = [
        peak_signal_noise_ratio(255 - pack.images[row.input], pack.images[row.input]) for _, row in rows
    ]
    assert one["figure"] == "gain, dB"
    assert one["int8"]["mean"] == 0
    assert one["lost"]["mean"] == pytest.approx(np.mean([100 - value for value in before]))
    assert "+" in quantised.shown([one])


def test_what_is_not_there_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = script("absent", monkeypatch)
    fundus = painted(range(4), classes=1, split="test")
    skin = [
        replace(s, id=f"skin{s.id}", modality="dermoscopy", target="mole", prompt=f"Paint the mole {n}")
        for n, s in enumerate(painted(range(8, 11), classes=1, split="test"))
    ]
    removed, drawn, filled = (
        changed(41 + n, kind)[0] for n, kind in enumerate(("removal",) * 2 + ("inpainting",))
    )
    pairs = [
        replace(removed, params={**removed.params, "inpainter": "exemplar"}),
        replace(drawn, params={**drawn.params, "inpainter": "flow", "from_health": True}),
        filled,
    ]
    perception = Dataset(write_samples([*fundus, *skin], tmp_path / "p"))
    modification = Dataset(write_samples(pairs, tmp_path / "m"))
    asked = list(absent.requests(perception, modification, 100))
    assert Counter(one.kind for one in asked) == {
        "there": 7,
        "of another modality": 7,
        "unknown": 7,
        "a lesion": 1,
        "a lesion removed by exemplar": 1,
        "a lesion, painted": 1,
        "the same image, untouched": 1,
    }
    moles = {sample.input.tobytes() for sample in skin}
    for kind, image, prompt, _ in asked[:21]:
        assert ("mole" in prompt) == {
            "there": image.tobytes() in moles,
            "of another modality": image.tobytes() not in moles,
            "unknown": False,
        }[kind]
    shown = {one.kind: one.image for one in asked[21:]}
    for kind, image in {
        "a lesion": removed.input,
        "a lesion removed by exemplar": removed.target_image,
        "a lesion, painted": drawn.input,
        "the same image, untouched": drawn.target_image,
    }.items():
        assert np.array_equal(shown[kind], image), kind
    # Painted on three of four, one of them surely; what is not painted has no share.
    seen = [(0.0, 0.9, "a", "1"), (0.1, 0.5, "a", "2"), (0.3, 0.2, "b", "3"), (0.2, 0.4, None, "4")]
    line = absent.row("x", [absent.Seen(*one) for one in seen])
    assert absent.row("y", [absent.Seen(*one) for one in seen[:3]])["painted"] == [2 / 3]  # of two patients
    share, low, high = line.pop("painted")
    assert share == 0.75
    assert 0 < low < 0.5
    assert 0.95 < high <= 1
    assert line == {
        "asked for": "x",
        "images": 4,
        "patients": "2 patients and 1 image, patient unknown",
        "median share": 0.2,
        "median confidence": 0.45,
        "painted, sure": 0.25,
    }
