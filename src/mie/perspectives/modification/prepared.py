"""One image on its way to a modification sample: scaled, with what is to go from it, and its sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mie.core.hashing import generator, sample_seed, stable_hash
from mie.images.hashes import checksum
from mie.perspectives.modification.counterfactual import Slice, Watch
from mie.perspectives.modification.lesions import Place, place_of, plane_of
from mie.perspectives.modification.phrasings import DESCRIPTIONS, PHRASINGS, ask, words
from mie.records import Case, Mask, Pixels, Rejection, Sample

NAME: Final = "modification"
VERSION: Final = 2
_SEEDED: Final = 1  # goes into ids and seeds: version 2 changed sentences and marks, not images
# What a prompt of each kind must hold, for `mie verify` and for whoever rewords it.
_NAMED: Final = {
    "removal": ("lesion",),
    "addition": ("a_lesion", "location"),
    "inpainting": (),
    "simulation": ("a_lesion",),
}


@dataclass(frozen=True, slots=True)
class Stored:
    """One image without a lesion, at the size that is stored."""

    case: Case
    split: str
    bin: int | None
    family: str
    image: Pixels
    masks: Mapping[str, Mask]
    body: Mask
    watch: Watch


@dataclass(frozen=True, slots=True)
class Prepared:
    """One image with the lesion that is to go from it, and what the detector saw of it."""

    case: Case
    split: str
    bin: int | None
    family: str
    at: Slice
    watch: Watch
    seen: dict[str, float] | None

    @property
    def facts(self) -> dict[str, Any]:
        """What the detector saw, and whether the patient is in the test split."""
        return {"detector": self.watch.params(), "lesion_seen": self.seen, "held_out": self.split == "test"}

    def rejection(self, gate: str, reason: str, numbers: dict[str, Any]) -> Rejection:
        case, target = self.case, ", ".join(target.name for target in self.at.lesion.targets)
        return Rejection(case.source, case.case_id, gate, reason, target, {**self.facts, **numbers})

    def place(self) -> Place:
        plane = plane_of(self.case.steps)
        return place_of(
            self.at.lesion.mask, self.at.body, family=self.family, anatomy=self.case.anatomy, plane=plane
        )

    def sample(
        self,
        task: str,
        images: tuple[Pixels, Pixels],
        mask: Pixels,
        place: Place,
        params: dict[str, Any],
        build_seed: int,
    ) -> Sample:
        case, lesion = self.case, self.at.lesion
        names = [target.name for target in lesion.targets]
        content = (case.source, case.case_id, names, checksum(case.image), checksum(lesion.mask))
        sample_id = f"{stable_hash(NAME, _SEEDED, task, *content):016x}"
        seed = sample_seed(build_seed, sample_id)
        spoken = words(
            lesion.spoken,
            anatomy=case.anatomy,
            modality=case.modality,
            location=place.location,
            size=place.size,
        )
        template = str(generator(seed).choice(PHRASINGS[task]))
        return Sample(
            id=sample_id,
            perspective=NAME,
            task=task,
            target=", ".join(names),
            modality=case.modality,
            anatomy=case.anatomy,
            prompt=ask(template, spoken),
            prompt_template=template,
            description=ask(DESCRIPTIONS[task], spoken),
            input=images[0],
            target_image=images[1],
            mask=mask,
            colour=None,
            split=self.split,
            bin=self.bin,
            source=case.source,
            case_id=case.case_id,
            patient_id=case.patient_id,
            recipe=NAME,
            recipe_version=VERSION,
            params={**params, "named": [spoken[key] for key in _NAMED[task]]},
            seed=seed,
            license=case.license,
            group=f"{stable_hash(NAME, _SEEDED, 'pair', *content):016x}",
        )
