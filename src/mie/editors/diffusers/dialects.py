"""How each class of pipeline wants to be called. Another class is one more row of `DIALECTS`.

The pipelines of diffusers differ in the names of their arguments, in their defaults and in the sizes that
they take. A row says how: everything else is the same for all of them (`mie.editors.diffusers.editor`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mie.core.registry import suggestion, unknown_name
from mie.editors.sizes import SizeRule
from mie.errors import ConfigError

DEFAULT: Final = "default"
PAPER: Final = "paper"
MEGAPIXEL: Final = 2**20
STEPS: Final = {"steps": "num_inference_steps"}
GUIDANCE: Final = {**STEPS, "guidance": "guidance_scale"}
TRUE_GUIDANCE: Final = {**STEPS, "guidance": "true_cfg_scale", "negative": "negative_prompt"}
IMAGE_GUIDANCE: Final = {**GUIDANCE, "image_guidance": "image_guidance_scale", "negative": "negative_prompt"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """One class of pipelines. Presets are in our words (`steps`, `guidance`), the same for every class."""

    default: Mapping[str, Any]  # the preset `default`: the pipeline's own settings
    paper: Mapping[str, Any] | None = None  # where the published settings differ; None: there are none
    arguments: Mapping[str, str] = field(default_factory=lambda: GUIDANCE)  # our words to the pipeline's
    size: SizeRule = field(default_factory=SizeRule)
    takes_size: bool = True  # it has arguments `height` and `width`
    sized: Mapping[str, Any] = field(default_factory=dict)  # further arguments unless it chooses the size
    area: str | None = None  # an argument for the number of pixels, unless it chooses the size
    rescales: bool = False  # it scales every image to one megapixel with its module's `calculate_dimensions`
    # Further images that it takes beside the one to edit. The pipelines of diffusers 0.42 take a list of any
    # length; these are the numbers that the models' makers state.
    references: int = 0
    batches: bool = False  # a list of images and prompts is a batch, equal to single edits up to rounding
    diptych: str | None = None  # it completes the right half of a pair; the prompt, with {} for ours

    def settings(self, preset: str, changes: Mapping[str, Any], name: str) -> dict[str, Any]:
        """A preset with the user's changes, in our words. `ConfigError` for what the class does not have."""
        if preset not in (DEFAULT, PAPER):
            raise unknown_name("preset", preset, (DEFAULT, PAPER))
        if preset == PAPER and self.paper is None:
            raise ConfigError(
                f"no published settings are known for {name}", expected="preset=default", found="preset=paper"
            )
        foreign = [word for word in changes if word not in self.arguments]
        if foreign:
            raise ConfigError(
                f"{name} has no {foreign[0]}", expected=", ".join(self.arguments), found=foreign[0]
            )
        published = (self.paper or {}) if preset == PAPER else {}
        settings = {**self.default, **published, **changes}
        if int(settings["steps"] * min(settings.get("strength", 1.0), 1.0)) < 1:
            raise ConfigError(
                "no step is left",
                expected="steps of at least 1; with strength, steps x strength of at least 1",
                found=", ".join(
                    f"{word} {settings[word]}" for word in ("steps", "strength") if word in settings
                ),
            )
        return settings


# The papers' settings: MieDB for SDXL-turbo, Kontext and Qwen-Image-Edit, MedEBench for the others.
_UNET: Final = SizeRule(multiple=8, least=64)
_FLUX2: Final = SizeRule(multiple=16, least=64)

DIALECTS: Final[dict[str, Dialect]] = {
    "StableDiffusionInstructPix2PixPipeline": Dialect(
        default={"steps": 100, "guidance": 7.5, "image_guidance": 1.5},
        paper={"steps": 50, "guidance": 7.5, "image_guidance": 1.6},
        arguments=IMAGE_GUIDANCE,
        size=_UNET,
        takes_size=False,
        batches=True,
    ),
    "StableDiffusionXLInstructPix2PixPipeline": Dialect(
        default={"steps": 100, "guidance": 5.0, "image_guidance": 1.5},
        arguments=IMAGE_GUIDANCE,
        size=_UNET,
        batches=True,
    ),
    "StableDiffusionXLImg2ImgPipeline": Dialect(
        default={"steps": 50, "guidance": 5.0, "strength": 0.3},
        paper={"steps": 2, "guidance": 1.0, "strength": 0.5},  # SDXL-turbo: one step is taken
        arguments={**GUIDANCE, "strength": "strength", "negative": "negative_prompt"},
        size=_UNET,
        takes_size=False,
        batches=True,
    ),
    "FluxKontextPipeline": Dialect(
        default={"steps": 28, "guidance": 3.5},
        paper={},  # true_cfg_scale 2.5 without a negative prompt, which has no effect
        sized={"_auto_resize": False},
        area="max_area",
        batches=True,
    ),
    "QwenImageEditPipeline": Dialect(
        default={"steps": 50, "guidance": 4.0, "negative": " "},
        arguments=TRUE_GUIDANCE,
        size=SizeRule(multiple=32, least=64),
        rescales=True,
    ),
    "QwenImageEditPlusPipeline": Dialect(  # 2509 and 2511
        default={"steps": 50, "guidance": 4.0, "negative": " "},
        paper={"steps": 40},
        arguments=TRUE_GUIDANCE,
        size=SizeRule(multiple=32, least=64),
        rescales=True,
        references=2,  # one to three images: the card of Qwen-Image-Edit-2509
    ),
    # At most six images are recommended for FLUX.2 [dev], four are the most for Klein:
    # docs.bfl.ai/guides/prompting_editing_overview.
    "Flux2Pipeline": Dialect(default={"steps": 50, "guidance": 4.0}, size=_FLUX2, references=5),
    "Flux2KleinPipeline": Dialect(default={"steps": 4, "guidance": 1.0}, size=_FLUX2, references=3),
    "LongCatImageEditPipeline": Dialect(
        default={"steps": 50, "guidance": 4.5},
        arguments={**GUIDANCE, "negative": "negative_prompt"},
        size=SizeRule(multiple=16, least=64),
        takes_size=False,
        rescales=True,
    ),
    # ICEdit: a LoRA on FLUX.1 Fill, which paints the right half of a pair whose left half is the image. The
    # sentence is the one that public scripts for ICEdit put before an instruction.
    "FluxFillPipeline": Dialect(
        default={"steps": 28, "guidance": 50.0},
        paper={},
        size=SizeRule(multiple=16, least=64, most=MEGAPIXEL // 2),
        batches=True,
        diptych=(
            "A diptych with two side-by-side images of the same scene. "
            "On the right, the scene is exactly the same as on the left but {}"
        ),
    ),
}

# Models that are published as makers of images and used as editors: SDXL-turbo.
EDITING_CLASS: Final = {"StableDiffusionXLPipeline": "StableDiffusionXLImg2ImgPipeline"}


def dialect_of(name: str, where: object) -> Dialect:
    """The row of a class."""
    if name in DIALECTS:
        return DIALECTS[name]
    near = suggestion(name, DIALECTS)
    row = "add a row to mie.editors.diffusers.dialects.DIALECTS (docs/how-to/diffusers.md says how)"
    raise ConfigError(
        f"no dialect for the pipeline {name!r}",
        where=where,
        expected=", ".join(DIALECTS),
        fix=row if near is None else f"{near} If not, {row}",
    )
