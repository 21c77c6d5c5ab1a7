"""What the imports of other people's benchmarks share: a foreign record as a sample of ours."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from PIL import Image

from mie.images.hashes import pixel_digest
from mie.records import Picture, Pixels, Sample, Step
from mie.store.schema import canonical
from mie.vocabulary import UNKNOWN

VERSION: Final = 1
LICENSE: Final = {"name": "not stated", "use": "unknown", "basis": "stated"}


def fitted(picture: Picture, size: tuple[int, int], how: Image.Resampling) -> tuple[Pixels, list[Step]]:
    """The pixels at (height, width), and the steps that led to them."""
    steps: list[Step] = [dict(step) for step in picture.steps]
    pixels = picture.pixels
    if pixels.shape[:2] == size:
        return pixels, steps
    steps.append({"step": "resize", "from": list(pixels.shape[:2]), "to": list(size), "how": how.name})
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], how)), steps


def fitted_mask(mask: Pixels, size: tuple[int, int]) -> Pixels:
    if mask.shape == size:
        return mask
    return np.asarray(Image.fromarray(mask).resize(size[::-1], Image.Resampling.NEAREST))


def foreign_sample(
    source: str,
    identity: object,
    *,
    prompt: str,
    input: Pixels,
    target_image: Pixels,
    params: Mapping[str, Any],
    case_id: str,
    mask: Pixels | None = None,
    anatomy: str = UNKNOWN,
    target: str = UNKNOWN,
    description: str = "",
    group: str | None = None,
    turn: int | None = None,
) -> Sample:
    """A modification sample of which nothing else is known. `identity` is the record: the id comes of it."""
    digests = [pixel_digest(image).hex() for image in (input, target_image)]
    digest = hashlib.sha256(canonical([source, VERSION, identity, digests]).encode()).hexdigest()
    return Sample(
        id=digest[:16],
        perspective="modification",
        task=UNKNOWN,
        target=target,
        modality=UNKNOWN,
        anatomy=anatomy,
        prompt=prompt,
        prompt_template="",
        description=description,
        input=input,
        target_image=target_image,
        mask=mask,
        colour=None,
        split="test",
        bin=None,
        source=source,
        case_id=case_id,
        patient_id=None,
        recipe=source,
        recipe_version=VERSION,
        params=params,
        seed=0,
        group=group,
        turn=turn,
    )
