"""The editor `diffusers`: any pipeline that has a row in `mie.editors.diffusers.dialects`.

The image goes in at the size that the policy says (`mie.editors.sizes`), the output comes back to the image's
own grid, and both ways are recorded in `meta["steps"]`. The noise is drawn on the CPU from the request's
seed, so that a seed means the same on every device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self

import numpy as np
from PIL import Image

from mie.core.files import digest
from mie.editors.base import Edited, EditError, Editor, Request, Turn
from mie.editors.diffusers.compiling import compiler_errors
from mie.editors.diffusers.dialects import DEFAULT, MEGAPIXEL, dialect_of
from mie.editors.diffusers.loader import Machine, check_files, find_lora, find_pipeline, load_pipeline
from mie.editors.sizes import AUTO, NATIVE, Placement, check_size, place
from mie.errors import ConfigError, MieError
from mie.networks.pretrained import model_digest, quiet
from mie.records import Pixels

_RESCALING: Final = Lock()  # a module's function is replaced while its pipeline is called


class DiffusersEditor(Editor):
    """A pipeline of diffusers in a local folder: InstructPix2Pix, SDXL, FLUX, Qwen-Image-Edit, LongCat."""

    takes_references = True
    deterministic = True
    tuning = frozenset({"offload"})

    def __init__(
        self,
        folder: str,
        *,
        preset: str = DEFAULT,
        steps: int | None = None,
        guidance: float | None = None,
        image_guidance: float | None = None,
        strength: float | None = None,
        negative: str | None = None,
        size: str = NATIVE,
        lora: str | None = None,
        history: int = 0,
        dtype: str = "auto",
        device: str = "auto",
        offload: str = "none",
        tiling: bool = False,
        quantize: str = "none",
        compile: bool = False,
    ) -> None:
        self._found = find_pipeline(folder)
        self.model = Path(folder).name
        self._dialect = dialect_of(self._found.name, self._found.index)
        check_files(self._found)
        given = {
            "steps": steps,
            "guidance": guidance,
            "image_guidance": image_guidance,
            "strength": strength,
            "negative": negative,
        }
        changes = {word: value for word, value in given.items() if value is not None}
        self._settings = self._dialect.settings(preset, changes, self._found.name)
        self._size = check_size(size)
        self._lora = None if lora is None else find_lora(lora)
        self._machine = Machine(dtype, device, offload, tiling, quantize, compile)
        self._history = history
        if self._dialect.diptych is not None and self._size == AUTO:
            raise ConfigError(
                f"{self._found.name} chooses no size for a pair of images",
                expected="size=native or a number such as 512",
                found="size=auto",
            )
        if not 0 <= history <= self._dialect.references:
            raise ConfigError(
                f"{self._found.name} does not take that many images",
                expected=f"history from 0 to {self._dialect.references}",
                found=history,
            )

    @cached_property
    def pipe(self) -> Any:
        """The pipeline, loaded when it is first needed."""
        import torch

        try:
            pipe = load_pipeline(self._found, self._machine.checked(), self._lora)
        except torch.OutOfMemoryError:
            raise MieError(
                "the weights do not fit into the GPU's memory",
                where=self._found.folder,
                fix="try dtype=bf16, then offload=model, offload=sequential or quantize=4bit",
            ) from None
        pipe.progress_bar = lambda iterable=None, total=None: _Steps(self, iterable, total)
        return pipe

    def load(self) -> None:
        """Load the weights."""
        _ = self.pipe

    @cached_property
    def _about(self) -> dict[str, Any]:
        return {
            "pipeline": self._found.name,
            "settings": self._settings,
            "size": self._size,
            "weights": model_digest(self._found.folder),
            **({} if self._lora is None else {"lora": digest(self._lora)}),
        }

    def about(self) -> dict[str, Any]:
        return self._about

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        return self.edit_request(Request(image, instruction, seed, history=history))

    def edit_request(self, request: Request) -> Edited:
        return self._edit([request])[0]

    def edit_batch(self, requests: Sequence[Request]) -> Sequence[Edited | EditError]:
        """Images that the model sees at the same size go together, where the pipeline takes batches."""
        if not self._dialect.batches or len(requests) == 1:
            return super().edit_batch(requests)
        sizes: dict[tuple[int, ...], list[int]] = {}
        for at, request in enumerate(requests):
            sizes.setdefault(self._place(request.image)[0].shape, []).append(at)
        edits: dict[int, Edited] = {}
        for group in sizes.values():
            edits.update(zip(group, self._edit([requests[at] for at in group]), strict=True))
        return [edits[at] for at in range(len(requests))]

    def _place(self, image: Pixels) -> tuple[Pixels, Placement]:
        return place(image, self._size, self._dialect.size)

    def _edit(self, requests: Sequence[Request]) -> list[Edited]:
        """One call of the pipeline. All images have the same size as the model sees them."""
        others = [self._references(request) for request in requests]
        placed = [self._place(request.image) for request in requests]
        prompts = [request.instruction for request in requests]
        if self._dialect.diptych is not None:
            prompts = [self._dialect.diptych.format(prompt) for prompt in prompts]
        images = [
            [_picture(seen), *map(_picture, more)] for (seen, _), more in zip(placed, others, strict=True)
        ]
        outputs = self._call(images, prompts, [request.seed for request in requests], placed[0][1].given)
        return [
            self._edited(output, placement, len(more))
            for output, (_, placement), more in zip(outputs, placed, others, strict=True)
        ]

    def _references(self, request: Request) -> list[Pixels]:
        """The request's references, then images of earlier turns. The last turn's is the image itself."""
        earlier = [turn.image for turn in request.history[:-1]]
        images = [*request.references, *(earlier[-self._history :] if self._history else ())]
        if len(images) > self._dialect.references:
            raise EditError(
                f"{self._found.name} does not take that many images",
                expected=f"at most {self._dialect.references} beside the one to edit",
                found=len(images),
            )
        return images

    def _call(
        self,
        images: list[list[Image.Image]],
        prompts: list[str],
        seeds: list[int],
        size: tuple[int, int],
    ) -> list[Any]:
        import torch

        pipe, dialect = self.pipe, self._dialect
        arguments: dict[str, Any] = {dialect.arguments[word]: v for word, v in self._settings.items()}
        firsts = [image[0] for image in images]
        if dialect.diptych is not None:
            pairs = [_diptych(image) for image in firsts]
            firsts, masks = [pair for pair, _ in pairs], [mask for _, mask in pairs]
            arguments["mask_image"] = masks if len(masks) > 1 else masks[0]
            size = (firsts[0].height, firsts[0].width)
        if self._size != AUTO:
            arguments |= dialect.sized
            if dialect.takes_size:
                arguments |= {"height": size[0], "width": size[1]}
            if dialect.area is not None:
                arguments[dialect.area] = size[0] * size[1]
        elif dialect.rescales and len(images[0]) > 1:  # it would take the shape of the last image
            shape = sys.modules[type(pipe).__module__].calculate_dimensions(MEGAPIXEL, size[1] / size[0])
            arguments |= {"width": shape[0], "height": shape[1]}
        generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
        if len(prompts) == 1:
            arguments["image"] = images[0] if len(images[0]) > 1 else firsts[0]
            arguments |= {"prompt": prompts[0], "generator": generators[0]}
        else:
            arguments |= {"image": firsts, "prompt": prompts, "generator": generators}
        keeping = dialect.rescales and self._size != AUTO
        try:
            with (
                quiet(),
                compiler_errors(self._machine.compile),
                _kept_size(type(pipe), size) if keeping else nullcontext(),
            ):
                return list(pipe(**arguments, output_type="np").images)
        except torch.OutOfMemoryError:
            pass  # the error holds the tensors of the call: let go of it before the next one
        torch.cuda.empty_cache()
        raise EditError(self._out_of_memory(size, len(prompts)))

    def _out_of_memory(self, size: tuple[int, int], count: int) -> str:
        several = f" for {count} images at once" if count > 1 else ""
        return (
            f"out of GPU memory at {size[1]}x{size[0]}{several}: resume with offload=model or "
            "offload=sequential and --retry-failed; or start a run with dtype=bf16, tiling=true, "
            "quantize=4bit or a smaller size"
        )

    def _edited(self, output: Any, placement: Placement, references: int) -> Edited:
        values = np.asarray(output, np.float32)
        if not np.isfinite(values).all():
            raise EditError(
                "the pipeline computed values that are not numbers; "
                "fp16 overflows in some models: try dtype=bf16 or dtype=fp32"
            )
        image = np.rint(values * 255).astype(np.uint8)
        if self._dialect.diptych is not None:
            image = image[:, image.shape[1] // 2 :]
        image, back = placement.back(image)
        steps = [*placement.steps, *back]
        meta: dict[str, Any] = {"steps": steps} if steps else {}
        return Edited(image, {**meta, **({"references": references} if references else {})})

    def close(self) -> None:
        self.__dict__.pop("pipe", None)


class _Steps:
    """In place of a pipeline's progress bar: every pipeline has one, and tells it of every step."""

    def __init__(self, editor: Editor, iterable: Iterable[Any] | None, total: int | None) -> None:
        self._editor, self._done = editor, 0
        self._items = [] if iterable is None else list(iterable)
        self._total = total or len(self._items)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            yield item
            self.update()

    def update(self, count: int = 1) -> None:
        self._done += count
        if self._editor.on_step is not None:
            self._editor.on_step(self._done, self._total)


def _picture(image: Pixels) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(image))


def _diptych(image: Image.Image) -> tuple[Image.Image, Image.Image]:
    """The image twice, side by side, and a mask of the right one."""
    width, height = image.size
    pair = Image.new("RGB", (2 * width, height))
    pair.paste(image, (0, 0))
    pair.paste(image, (width, 0))
    mask = Image.new("L", pair.size, 0)
    mask.paste(255, (width, 0, 2 * width, height))
    return pair, mask


@contextmanager
def _kept_size(kind: type, size: tuple[int, int]) -> Iterator[None]:
    """Keep a pipeline from scaling its images to one megapixel: they stay at `size`, others at its area.

    Qwen-Image-Edit and LongCat have no argument for it. A reference at another scale than the output makes
    them shift and zoom what they should leave in place.
    """
    module: Any = sys.modules[kind.__module__]
    height, width = size
    with _RESCALING:
        original = module.calculate_dimensions

        def dimensions(area: int, ratio: float) -> tuple[Any, ...]:
            if area != MEGAPIXEL:  # what the language model sees
                return original(area, ratio)
            rest = original(area, ratio)[2:]
            return (width, height, *rest) if ratio == width / height else original(height * width, ratio)

        module.calculate_dimensions = dimensions
        try:
            yield
        finally:
            module.calculate_dimensions = original
