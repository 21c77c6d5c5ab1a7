"""AreaRows in a pack: one picture whole, the others as what differs; and read from a dataset."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from mie.perspectives.modification.phrasings import PHRASINGS, ask
from mie.perspectives.modification.phrasings import words as change_words
from mie.records import Target
from mie.training.pack import as_rgb, read_pack, shared_bases, write_pack
from mie.training.pack_datasets import pack_datasets
from mie.training.pack_pictures import encode_part
from mie.training.wordings import held_out_templates
from tests.conftest import crop, ellipse
from tests.training.conftest import painted, same, write_samples

PLURAL = Target("hard exudates", "lesion", True)
WHERE = "in the upper left quadrant of the image"


@pytest.fixture
def groups():
    """Samples of four kinds for three pictures, one of them grey, beside perception of the first."""
    (perceived,) = painted(range(1), 1)
    made = [perceived]
    for number in range(3):
        image, area = np.minimum(crop(number), 250), ellipse(number)
        if number == 2:
            image = np.repeat(image[..., :1], 3, axis=2)
        healthy, hole = image.copy(), image.copy()
        healthy[area] = healthy[area][::-1] // 2
        hole[area] = 255
        for task, shown, goal in (
            ("removal", image, healthy),
            ("addition", healthy, image),
            ("inpainting", hole, healthy),
            ("simulation", hole, image),
        ):
            made.append(
                replace(
                    perceived,
                    id=f"m-{number}-{task}",
                    perspective="modification",
                    task=task,
                    prompt=f"do the {task}",
                    prompt_template=f"do the {task}",
                    input=shown,
                    target_image=goal,
                    mask=(255 * area).astype(np.uint8),
                    colour=None,
                    case_id=f"m{number}",
                    patient_id=f"test/m{number}",
                    recipe="modification",
                    params={"inpainter": "made"},
                    group=f"m{number}",
                )
            )
    return made


@pytest.fixture
def dataset(groups, tmp_path):
    return write_samples(groups, tmp_path / "modification")


def test_a_modification_keeps_both_images_and_its_area(dataset, groups) -> None:
    pack = pack_datasets([dataset])
    stored = {sample.id: sample for sample in groups}
    rows = [row for row in pack.rows if row.perspective == "modification"]
    assert len(rows) == 12
    assert len(pack.images) == 1 + 3 * 3, "four samples share three pictures"
    assert len({row.mask for row in rows}) == 3
    for row in rows:
        sample = stored[row.id]
        assert same(as_rgb(pack.images[row.input]), sample.input)
        assert same(as_rgb(pack.images[row.goal]), sample.target_image)
        assert np.array_equal(pack.masks[row.mask] * 255, sample.mask)
        assert (row.classes, row.simulate, row.key) == (1, None, None)
        assert pack.instructions[row.instruction].wordings[0].prompt == sample.prompt


@pytest.mark.parametrize("lossy", [None, 80])
def test_outside_the_area_both_stay_the_same_also_when_lossy(dataset, tmp_path, lossy) -> None:
    pack = pack_datasets([dataset])
    write_pack(tmp_path / "pack", pack, lossy=lossy)
    read = read_pack(tmp_path / "pack")
    for at, row in enumerate(pack.rows):
        if row.perspective != "modification":
            continue
        image, goal = read.images[read.rows[at].input], read.images[read.rows[at].goal]
        outside = pack.masks[row.mask] == 0
        assert np.array_equal(image[outside], goal[outside])
        assert image.shape == pack.images[row.input].shape
        if lossy is None:
            assert same(image, pack.images[row.input])
            assert same(goal, pack.images[row.goal])
        elif row.task in ("inpainting", "simulation"):
            assert (image[~outside] == 255).all()


def test_words_are_those_of_the_recipe(tmp_path) -> None:
    """Each way is one that the recipe could have drawn; the stored one is among them or held out."""
    made = []
    for number in range(6):
        area = ellipse(number)
        words = change_words([PLURAL], anatomy="retina", modality="fundus", location=WHERE, size="small")
        for task, template in product(PHRASINGS, (0, 5, 11)):
            sample = painted(range(number, number + 1), 1)[0]
            text = PHRASINGS[task][template]
            made.append(
                replace(
                    sample, id=f"{number}-{task}-{template}", perspective="modification", task=task,
                    target=PLURAL.name, anatomy="retina", modality="fundus", colour=None,
                    prompt=ask(text, words), prompt_template=text, mask=(255 * area).astype(np.uint8),
                    params={"location": WHERE, "size": "small"}, recipe="modification",
                )
            )  # fmt: skip
    entry = {"name": "test", "targets": [{"name": PLURAL.name, "plural": True}], "pairing": None}
    folder = write_samples(made, tmp_path / "m", {"name": "m", "sources": [{"entry": entry}]})
    pack = pack_datasets([folder], wordings=100)
    stored = {sample.id: sample for sample in made}
    assert len(pack.instructions) == 4
    for row in pack.rows:
        known, sample = pack.instructions[row.instruction], stored[row.id]
        trained = {w.prompt for w in known.wordings}
        held_out = {w.template for w in known.held_out}
        assert held_out == held_out_templates(row.task)
        assert len(trained) == len(PHRASINGS[row.task]) - len(held_out)
        assert (sample.prompt in trained) == (sample.prompt_template not in held_out)
        assert any(WHERE in prompt for prompt in trained) == (row.task in ("removal", "addition"))


def test_three_of_a_group_cost_little(dataset) -> None:
    pack = pack_datasets([dataset])
    bases = shared_bases(pack)
    assert len(bases) == 2 * 3
    roots = set(bases.values())
    assert len(roots) == 3
    assert not roots & bases.keys(), "a base is whole"
    for at, base in bases.items():
        whole = encode_part(pack.images[at], 255 - pack.images[base])
        assert len(encode_part(pack.images[at], pack.images[base])) < 0.5 * len(whole)


def test_a_pack_without_bases_is_read(dataset, tmp_path) -> None:
    """As the first version wrote them."""
    import json

    import pyarrow.parquet as pq

    from mie.core.files import digest

    pack = pack_datasets([dataset])
    pack.rows = [row for row in pack.rows if row.perspective == "perception"]
    write_pack(tmp_path / "pack", pack)
    info = json.loads((tmp_path / "pack/pack.json").read_text())
    for name in ("images", "masks"):
        path = tmp_path / f"pack/{name}.parquet"
        pq.write_table(pq.read_table(path).drop_columns(["base"]), path)
        info["files"][path.name] = digest(path)
    (tmp_path / "pack/pack.json").write_text(json.dumps({**info, "version": 1}))
    read = read_pack(tmp_path / "pack")
    assert all(same(a, b) for a, b in zip(read.images, pack.images, strict=True))


def test_the_test_split_alone(tmp_path) -> None:
    samples = painted(range(5), 1) + painted(range(5, 8), 1, split="test")
    folder = write_samples(samples, tmp_path / "both")
    pack = pack_datasets([folder], split="test")
    assert {row.patient_id for row in pack.rows} == {f"test/p{n}" for n in range(5, 8)}
    assert {row.fold for row in pack.rows} == {"test"}
    assert pack.facts["split"] == "test"
