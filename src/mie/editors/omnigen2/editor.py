"""The editor `omnigen2`: OmniGen2 (Wu et al. 2025) in our own code, from its published folder.

The image to edit is the first reference, the request's references follow. Noise and reference latents are
drawn on the CPU from the request's seed, so that a seed means the same on every device and in every batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mie.core.files import digest
from mie.editors.base import Edited, EditError, Editor, Request, Turn
from mie.editors.diffusers.compiling import compile_blocks, compiler_errors
from mie.editors.diffusers.loader import DTYPES, Machine
from mie.editors.omnigen2.loader import find_lora, find_model, load_text, load_transformer, load_vae
from mie.editors.sizes import AUTO, NATIVE, Placement, SizeRule, check_size, place
from mie.errors import ConfigError, MieError
from mie.networks.pretrained import model_digest
from mie.records import Pixels

if TYPE_CHECKING:
    from torch import Tensor

    from mie.networks.omnigen2 import OmniGen2Transformer
    from mie.networks.omnigen2_flow import Conditions

RULE: Final = SizeRule(multiple=16, least=64, most=2**20)  # stride 8, patches of two latents
MAX_TOKENS: Final = 1024
# What the published model was trained with. A text is a conversation of these two turns.
CHAT: Final = (
    "<|im_start|>system\nYou are a helpful assistant that generates high-quality images based on user "
    "instructions.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
)


class OmniGen2Editor(Editor):
    """OmniGen2 or a model fine-tuned from it, in a local folder as it was published."""

    takes_references = True
    deterministic = True
    tuning = frozenset({"offload"})

    def __init__(
        self,
        folder: str,
        *,
        steps: int = 50,
        text: float = 5.0,
        image: float = 2.0,
        start: float = 0.0,
        end: float = 1.0,
        negative: str = "",
        size: str = NATIVE,
        lora: str | None = None,
        dtype: str = "auto",
        device: str = "auto",
        offload: str = "none",
        compile: bool = False,
    ) -> None:
        if steps < 1 or text < 1 or image < 1 or not 0 <= start <= end <= 1:
            raise ConfigError(
                "these settings of omnigen2 are not usable",
                expected="steps, text and image from 1; start and end, shares of the steps, from 0 to 1",
                found=f"steps={steps}, text={text}, image={image}, start={start}, end={end}",
            )
        if offload not in ("none", "model"):
            raise ConfigError("no such offload", expected="none or model", found=offload)
        self._size = check_size(size)
        self._machine = Machine(dtype, device, offload, compile=compile)
        self._model = find_model(folder)
        self.model = Path(folder).name
        self._lora = None if lora is None else find_lora(lora)
        self._settings = {"steps": steps, "text": text, "image": image, "start": start, "end": end}
        self._negative = negative

    def about(self) -> dict[str, Any]:
        return self._about

    @cached_property
    def _about(self) -> dict[str, Any]:
        lora = None if self._lora is None else next(self._lora.glob("*.safetensors"))
        return {
            "settings": {**self._settings, "negative": self._negative},
            "size": self._size,
            "weights": model_digest(self._model.folder),
            **({} if lora is None else {"lora": digest(lora)}),
        }

    @cached_property
    def _at(self) -> Machine:
        return self._machine.checked()

    @cached_property
    def transformer(self) -> OmniGen2Transformer:
        """The network, loaded when it is first needed."""
        import torch

        from mie.networks.omnigen2 import Block

        resident = self._at.device if self._at.offload == "none" else "cpu"
        kind = getattr(torch, DTYPES[self._at.dtype])
        network = load_transformer(self._model, kind, resident, self._lora)
        if self._at.compile:
            compile_blocks(network, (Block.__name__,))
        return network

    @cached_property
    def _vae(self) -> Any:
        import torch

        vae = load_vae(self._model, getattr(torch, DTYPES[self._at.dtype]))
        return vae.to(self._at.device) if self._at.offload == "none" else vae

    @cached_property
    def _language(self) -> tuple[Any, Any]:
        import torch

        model, tokenizer = load_text(self._model, getattr(torch, DTYPES[self._at.dtype]))
        return (model.to(self._at.device) if self._at.offload == "none" else model), tokenizer

    def load(self) -> None:
        """Load the weights."""
        import torch

        try:
            _ = self.transformer, self._vae, self._language
        except torch.OutOfMemoryError:
            raise MieError(
                "the weights do not fit into the GPU's memory",
                where=self._model.folder,
                fix="try dtype=bf16, then offload=model",
            ) from None

    def close(self) -> None:
        for name in ("transformer", "_vae", "_language", "_negative_states"):
            self.__dict__.pop(name, None)

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        return self.edit_request(Request(image, instruction, seed, history=history))

    def edit_request(self, request: Request) -> Edited:
        return self._edit([request])[0]

    def edit_batch(self, requests: Sequence[Request]) -> Sequence[Edited | EditError]:
        """Images that the model sees at the same size go together."""
        groups: dict[tuple[int, int], list[int]] = {}
        for at, request in enumerate(requests):
            groups.setdefault(self._place(request.image)[1].given, []).append(at)
        edits: dict[int, Edited] = {}
        for group in groups.values():
            edits.update(zip(group, self._edit([requests[at] for at in group]), strict=True))
        return [edits[at] for at in range(len(requests))]

    def _place(self, image: Pixels) -> tuple[Pixels, Placement]:
        return place(image, _published_size(image) if self._size == AUTO else self._size, RULE)

    def _edit(self, requests: Sequence[Request]) -> list[Edited]:
        import torch

        placed = [self._place(request.image) for request in requests]
        size = placed[0][1].given
        outputs = None
        with suppress(torch.OutOfMemoryError):
            outputs = self._sampled(requests, [seen for seen, _ in placed], size)
        if outputs is None:  # here the error, which holds the tensors of the call, is gone
            torch.cuda.empty_cache()
            raise EditError(_out_of_memory(size, len(requests)))
        return [
            _edited(output, placement, len(request.references))
            for output, (_, placement), request in zip(outputs, placed, requests, strict=True)
        ]

    def _sampled(
        self, requests: Sequence[Request], images: Sequence[Pixels], size: tuple[int, int]
    ) -> Sequence[Any]:
        import torch

        from mie.networks.omnigen2_flow import Guidance, NotFiniteError, sample

        dice = [torch.Generator("cpu").manual_seed(request.seed) for request in requests]
        channels = self._model.config.in_channels
        shape = (channels, size[0] // self._stride, size[1] // self._stride)
        noise = torch.stack([torch.randn(shape, generator=one) for one in dice]).to(self._at.device)
        given, negative = self.conditions(requests, images, dice)
        settings = dict(self._settings)
        steps = int(settings.pop("steps"))
        try:
            with self._on_device(self.transformer), compiler_errors(self._at.compile):
                latents = sample(
                    self.transformer,
                    noise,
                    given,
                    negative,
                    steps=steps,
                    guidance=Guidance(**settings),
                    on_step=self.on_step,
                )
        except NotFiniteError as error:
            raise EditError(
                f"{error}; with fp16 a value may be too large: try dtype=bf16 or dtype=fp32"
            ) from None
        return list(self._decoded(latents))

    def conditions(
        self, requests: Sequence[Request], images: Sequence[Pixels], dice: Sequence[Any]
    ) -> tuple[Conditions, Conditions]:
        """What the model is given of a batch, and the same with the negative text."""
        import torch

        from mie.networks.omnigen2 import MAX_REFERENCES
        from mie.networks.omnigen2_flow import Conditions

        groups: list[list[Pixels]] = []
        for request, image in zip(requests, images, strict=True):
            if len(request.references) >= MAX_REFERENCES:
                raise EditError(
                    "OmniGen2 does not take that many images",
                    expected=f"at most {MAX_REFERENCES - 1} beside the one to edit",
                    found=len(request.references),
                )
            groups.append([image, *(self._place(other)[0] for other in request.references)])
        references = self._encoded(groups, dice)
        text, lengths = self.text_states([request.instruction for request in requests])
        bare, (bare_length,) = self._negative_states
        count = len(requests)
        return (
            Conditions(text, lengths, references),
            Conditions(torch.cat([bare] * count), [bare_length] * count, references),
        )

    @cached_property
    def _negative_states(self) -> tuple[Tensor, list[int]]:
        return self.text_states([self._negative])

    def tokens(self, instructions: Sequence[str]) -> Any:
        """Ids and mask of what the language model reads, right padding."""
        texts = [CHAT.format(text) for text in instructions]
        return self._language[1](
            texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
        )

    def word_positions(self, instruction: str, ends: Sequence[int]) -> list[int]:
        """Among the text's tokens, the last one of each word; a word is given by where it ends."""
        head = CHAT.partition("{}")[0]
        texts = [head + instruction[:end] for end in ends]
        return [len(self._language[1](text).input_ids) - 1 for text in texts]

    def text_states(self, instructions: Sequence[str]) -> tuple[Tensor, list[int]]:
        """The last hidden states, `(batch, tokens, width)`, and how many tokens of each count."""
        import torch

        tokens, model = self.tokens(instructions), self._language[0]
        with torch.no_grad(), self._on_device(model):
            states = model(
                input_ids=tokens.input_ids.to(self._at.device),
                attention_mask=tokens.attention_mask.to(self._at.device),
                use_cache=False,
            ).last_hidden_state
        return states, tokens.attention_mask.sum(1).tolist()

    @cached_property
    def _stride(self) -> int:
        return 2 ** (len(self._vae.config.block_out_channels) - 1)

    def _encoded(self, groups: Sequence[Sequence[Pixels]], dice: Sequence[Any]) -> list[list[Tensor]]:
        """Draw each sample's latents from the autoencoder's distribution; images to edit go as one batch."""
        import torch

        vae, latents = self._vae, []
        with torch.no_grad(), self._on_device(vae):

            def moments(images: Sequence[Pixels]) -> Any:
                values = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 127.5 - 1
                return vae.encode(values.to(self._at.device, vae.dtype)).latent_dist

            firsts = moments([images[0] for images in groups])
            for at, (images, one) in enumerate(zip(groups, dice, strict=True)):
                known = [(firsts.mean[at], firsts.std[at])]
                for other in images[1:]:
                    found = moments([other])
                    known.append((found.mean[0], found.std[0]))
                draws = [torch.randn(mean.shape, generator=one).to(self._at.device) for mean, _ in known]
                shift, scale = vae.config.shift_factor or 0.0, vae.config.scaling_factor or 1.0
                latents.append(
                    [
                        (mean.float() + std.float() * draw - shift) * scale
                        for (mean, std), draw in zip(known, draws, strict=True)
                    ]
                )
        return latents

    def _decoded(self, latents: Tensor) -> Any:
        import torch

        vae = self._vae
        shift, scale = vae.config.shift_factor or 0.0, vae.config.scaling_factor or 1.0
        with torch.no_grad(), self._on_device(vae):
            values = vae.decode((latents / scale + shift).to(vae.dtype)).sample
        return values.float().permute(0, 2, 3, 1).cpu().numpy()

    @contextmanager
    def _on_device(self, part: Any) -> Iterator[None]:
        """With offload=model a part is on the GPU only while it is used."""
        if self._at.offload == "none":
            yield
            return
        part.to(self._at.device)
        try:
            yield
        finally:
            part.to("cpu")


def _edited(values: Any, placement: Placement, references: int) -> Edited:
    if not np.isfinite(values).all():
        raise EditError(
            "the decoded image holds values that are not numbers; "
            "with fp16 a value may be too large: try dtype=bf16 or dtype=fp32"
        )
    image = np.rint(np.clip(values / 2 + 0.5, 0, 1) * 255).astype(np.uint8)
    image, back = placement.back(image)
    steps = [*placement.steps, *back]
    meta: dict[str, Any] = {"steps": steps} if steps else {}
    return Edited(image, {**meta, **({"references": references} if references else {})})


def _published_size(image: Pixels) -> str:
    """The published pipeline's choice: at most a megapixel, both sides rounded down to multiples of 16."""
    height, width = image.shape[:2]
    factor = min(1.0, math.sqrt(RULE.most / (height * width)))
    sides = (max(16, int(side * factor) // 16 * 16) for side in (width, height))
    return "x".join(map(str, sides))


def _out_of_memory(size: tuple[int, int], count: int) -> str:
    several = f" for {count} images at once" if count > 1 else ""
    return (
        f"out of GPU memory at {size[1]}x{size[0]}{several}: resume with offload=model and --retry-failed; "
        "or start a run with dtype=bf16 or a smaller size"
    )
