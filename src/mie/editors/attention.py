"""Where an editor looks: the attention between words of an instruction and places of the image.

Nothing of the model is changed. Attention to chosen tokens equals the output of the same attention for values
that are 1 at one token and one channel and 0 elsewhere, so the model's own attention function is called a
second time with such values: exact for any mask, any kernel and grouped heads. The other direction, from a
word to the image, needs a few rows only, which are computed. Only the first pass of a step counts: the one
with the whole instruction. Heads are averaged and steps are summed as they come, so memory does not grow.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np

from mie.editors.base import Edited, EditError, Editor, Request
from mie.editors.diffusers.editor import DiffusersEditor
from mie.editors.omnigen2.editor import OmniGen2Editor
from mie.editors.sizes import AUTO, Placement
from mie.errors import ConfigError
from mie.records import Values

if TYPE_CHECKING:
    from torch import Tensor

TO_WORD: Final = "to_word"  # how much a place of the image attends to the word
FROM_WORD: Final = "from_word"  # how much the word attends to a place of the image
DIRECTIONS: Final = (TO_WORD, FROM_WORD)
_DISPATCH: Final = "dispatch_attention_fn"  # through which the transformers of diffusers attend
_PATCH: Final = 2  # latents to a token, in both directions, in every transformer here


@dataclass(frozen=True, slots=True)
class Layer:
    """The mean over heads and steps in one layer, `(words, height, width)` by direction."""

    name: str
    maps: Mapping[str, Values]


@dataclass(frozen=True, slots=True)
class Attention:
    """What was seen during one edit."""

    layers: tuple[Layer, ...]
    placement: Placement

    def of_layer(self, layer: Layer, direction: str) -> Values:
        """A layer's maps on the image's own grid, `(words, height, width)`, bilinear."""
        return np.stack([_on_image(one, self.placement) for one in layer.maps[direction]])

    def mean(self, direction: str = TO_WORD) -> Values | None:
        """The mean over the layers on the image's own grid; None where there is no such direction."""
        maps = [self.of_layer(layer, direction) for layer in self.layers if direction in layer.maps]
        return np.asarray(np.mean(maps, 0, dtype=np.float64), np.float32) if maps else None


def record_attention(editor: Editor, request: Request, ends: Sequence[int]) -> tuple[Edited, Attention]:
    """Make one edit and say where it looked.

    Args:
        editor: One whose model we know: `diffusers` or `omnigen2`. The output is the same as without.
        request: The edit.
        ends: For each word, the position in the instruction at which it ends. Its last token counts.

    """
    watch = _watch(editor, request, ends)
    with watch.installed():
        edited = editor.edit_request(request)
    return edited, watch.attention()


def check_watchable(editor: Editor) -> None:
    """`ConfigError` for an editor whose attention cannot be read."""
    if not isinstance(editor, DiffusersEditor | OmniGen2Editor):
        raise ConfigError(
            f"the attention of {type(editor).__name__} cannot be read",
            expected="an editor whose model runs here: diffusers:FOLDER or omnigen2:FOLDER",
        )
    if isinstance(editor, DiffusersEditor) and editor._dialect.diptych is not None:
        raise ConfigError("the attention of an editor that completes a pair of images cannot be read")
    if editor._machine.compile:
        raise ConfigError("the attention of compiled blocks cannot be read", fix="leave out compile=true")
    if editor._size == AUTO:
        raise ConfigError(
            "with size=auto it is not known where a token lies in the image",
            expected="size=native, or a number such as 512",
            found="size=auto",
        )


def _watch(editor: Editor, request: Request, ends: Sequence[int]) -> _Watch:
    check_watchable(editor)
    if isinstance(editor, OmniGen2Editor):
        return _WatchOmniGen2(editor, request, ends)
    assert isinstance(editor, DiffusersEditor)  # noqa: S101
    kind = _WatchUNet if getattr(editor.pipe, "unet", None) is not None else _WatchTransformer
    return kind(editor, request, ends)


class _Watch(ABC):
    """Sums while one edit is made. `_pass` is the number of the model's pass within a step, from 1."""

    def __init__(self, editor: Any, request: Request, ends: Sequence[int]) -> None:
        self._editor = editor
        self._request = request
        self._ends = ends
        self._placement: Placement = editor._place(request.image)[1]
        self._sums: dict[str, dict[str, Tensor]] = {}
        self._counts: dict[str, int] = {}
        self._pass = 0

    @contextmanager
    def installed(self) -> Iterator[None]:
        told = self._editor.on_step

        def on_step(done: int, total: int) -> None:
            self._pass = 0
            if told is not None:
                told(done, total)

        with ExitStack() as stack:
            self._editor.on_step = on_step
            stack.callback(setattr, self._editor, "on_step", told)
            self._install(stack)
            yield

    @abstractmethod
    def _install(self, stack: ExitStack) -> None:
        """Look on until the stack is closed."""

    def attention(self) -> Attention:
        if not self._sums:
            raise EditError("no attention to the instruction was seen in this model")
        layers = []
        for name, sums in self._sums.items():
            maps = {}
            for direction, values in sums.items():
                height, width = self._grid(values.shape[0])
                mean = (values / self._counts[name]).T.reshape(-1, height, width)
                maps[direction] = mean.float().cpu().numpy()
            layers.append(Layer(name, maps))
        return Attention(tuple(layers), self._placement)

    @abstractmethod
    def _grid(self, tokens: int) -> tuple[int, int]:
        """Height and width of a map of so many tokens."""

    def _add(self, name: str, **maps: Tensor) -> None:
        """Maps are `(tokens, words)`, heads averaged."""
        self._counts[name] = self._counts.get(name, 0) + 1
        sums = self._sums.setdefault(name, {})
        for direction, values in maps.items():
            sums[direction] = sums[direction] + values.double() if direction in sums else values.double()


class _WatchOmniGen2(_Watch):
    def _install(self, stack: ExitStack) -> None:
        from mie.networks.omnigen2 import attend

        net = self._editor.transformer
        words = self._editor.word_positions(self._request.instruction, self._ends)
        height, width = self._grid(0)
        stack.callback(net.register_forward_pre_hook(self._entered).remove)
        for at, block in enumerate(net.layers):

            def watching(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, at: int = at) -> Tensor:
                if self._pass == 1:
                    target = slice(q.shape[2] - height * width, q.shape[2])
                    again = lambda values: attend(q, k, values, mask)
                    to_word = attention_to(again, v, words)[0, :, target].mean(0)
                    from_word = attention_from(q, k, words, mask)[0, :, :, target].mean(0).T
                    self._add(f"layer {at}", to_word=to_word, from_word=from_word)
                return attend(q, k, v, mask)

            block.attn.attend = watching
            stack.callback(setattr, block.attn, "attend", attend)

    def _entered(self, *_: Any) -> None:
        self._pass += 1

    def _grid(self, tokens: int) -> tuple[int, int]:
        side = self._editor._stride * self._editor._model.config.patch_size
        return self._placement.given[0] // side, self._placement.given[1] // side


class _WatchPipeline(_Watch):
    """A pipeline of diffusers. The text's tokens are taken from what its text encoder is given."""

    def __init__(self, editor: DiffusersEditor, request: Request, ends: Sequence[int]) -> None:
        super().__init__(editor, request, ends)
        self._ids: list[int] = []
        self._places: list[int] = []

    def _hear(self, stack: ExitStack, encoder: Any) -> None:
        def heard(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not self._ids:  # the instruction comes first, a negative one after it
                self._ids = (kwargs["input_ids"] if "input_ids" in kwargs else args[0])[0].tolist()

        stack.callback(encoder.register_forward_pre_hook(heard, with_kwargs=True).remove)

    def _words(self, tokenizer: Any, keys: int) -> list[int]:
        """Where the words' last tokens are among `keys` text tokens; a template's start may be cut off."""
        if self._places:
            return self._places
        text = self._request.instruction
        for end in self._ends:
            before = tokenizer(text[:end], add_special_tokens=False).input_ids
            start = _last_place(before, self._ids)
            place = -1 if start is None else start + len(before) - 1 - max(0, len(self._ids) - keys)
            if not 0 <= place < keys:
                raise EditError("a word is not among the tokens that the model reads", found=repr(text[:end]))
            self._places.append(place)
        return self._places


class _WatchUNet(_WatchPipeline):
    """Cross-attention (`attn2`), from places of the image to at most 77 text tokens."""

    def _install(self, stack: ExitStack) -> None:
        pipe = self._editor.pipe
        self._hear(stack, pipe.text_encoder)
        for name, module in pipe.unet.named_modules():
            if name.endswith("attn2"):
                original = module.processor
                module.processor = self._processor(name, original)
                stack.callback(setattr, module, "processor", original)

    def _processor(self, name: str, original: Any) -> Callable[..., Any]:
        def process(attn: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            result = original(attn, hidden_states, *args, **kwargs)
            text = kwargs["encoder_hidden_states"] if "encoder_hidden_states" in kwargs else args[0]
            self._look(name, attn, hidden_states, text)
            return result

        return process

    def _look(self, name: str, attn: Any, hidden: Tensor, text: Tensor) -> None:
        import torch.nn.functional as F

        # InstructPix2Pix puts the row with the whole instruction first, the others put it last.
        row = 0 if "InstructPix2Pix" in type(self._editor.pipe).__name__ else len(hidden) - 1
        text = attn.norm_encoder_hidden_states(text) if attn.norm_cross else text
        q, k = attn.to_q(hidden[row : row + 1]), attn.to_k(text[row : row + 1])
        q, k = (x.view(1, x.shape[1], attn.heads, -1).transpose(1, 2) for x in (q, k))
        q, k = (x if norm is None else norm(x) for x, norm in ((q, attn.norm_q), (k, attn.norm_k)))
        again = lambda values: F.scaled_dot_product_attention(q, k, values, scale=attn.scale)
        words = self._words(self._editor.pipe.tokenizer, k.shape[2])
        self._add(name, to_word=attention_to(again, k, words)[0].mean(0))

    def _grid(self, tokens: int) -> tuple[int, int]:
        height, width = (side // self._editor.pipe.vae_scale_factor for side in self._placement.given)
        while height * width > tokens:
            height, width = -(-height // 2), -(-width // 2)
        if height * width != tokens:
            raise EditError("a layer of the model has an unknown grid", found=f"{tokens} places")
        return height, width


class _WatchTransformer(_WatchPipeline):
    """Joint attention over [text, target, references], in every block."""

    def _install(self, stack: ExitStack) -> None:
        pipe = self._editor.pipe
        net = pipe.transformer
        long = getattr(pipe, "text_encoder_2", None) is not None
        self._hear(stack, pipe.text_encoder_2 if long else pipe.text_encoder)
        self._tokenizer = pipe.tokenizer_2 if long else pipe.tokenizer
        stack.callback(net.register_forward_pre_hook(self._entered, with_kwargs=True).remove)
        for module in {type(part).__module__ for part in net.modules()}:
            home: Any = sys.modules[module]
            if hasattr(home, _DISPATCH):
                original = getattr(home, _DISPATCH)
                setattr(home, _DISPATCH, self._dispatch(original))
                stack.callback(setattr, home, _DISPATCH, original)

    def _entered(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._pass += 1
        self._calls = 0
        self._text = kwargs["encoder_hidden_states"].shape[1]

    def _dispatch(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def dispatch(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            result = original(query, key, value, *args, **kwargs)
            height, width = self._grid(0)
            whole = query.shape[1] == key.shape[1] >= self._text + height * width
            if self._pass == 1 and whole:
                words = self._words(self._tokenizer, self._text)
                target = slice(self._text, self._text + height * width)
                q, k, v = (x.transpose(1, 2) for x in (query, key, value))
                again = lambda values: original(
                    query, key, values.transpose(1, 2), *args, **kwargs
                ).transpose(1, 2)
                to_word = attention_to(again, v, words)[0, :, target].mean(0)
                mask, scale = kwargs.get("attn_mask", args[0] if args else None), kwargs.get("scale")
                from_word = attention_from(q, k, words, mask, scale)[0, :, :, target].mean(0).T
                self._add(f"block {self._calls}", to_word=to_word, from_word=from_word)
                self._calls += 1
            return result

        return dispatch

    def _grid(self, tokens: int) -> tuple[int, int]:
        side = self._editor.pipe.vae_scale_factor * _PATCH
        return self._placement.given[0] // side, self._placement.given[1] // side


def attention_to(again: Callable[[Tensor], Tensor], like: Tensor, places: Sequence[int]) -> Tensor:
    """The weights `(batch, heads, tokens, places)` of an attention, from itself with other values.

    Args:
        again: The attention as a function of its values, `(batch, heads, tokens, width)`.
        like: The values that it has.
        places: The keys of interest. As many go at once as the values are wide.

    """
    import torch

    weights = []
    for start in range(0, len(places), like.shape[-1]):
        some = list(places[start : start + like.shape[-1]])
        values = torch.zeros_like(like)
        for channel, place in enumerate(some):
            values[:, :, place, channel] = 1
        weights.append(again(values)[..., : len(some)])
    return torch.cat(weights, -1)


def attention_from(
    q: Tensor, k: Tensor, places: Sequence[int], mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """The weights `(batch, heads, places, tokens)` of a few queries, in float32."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1).float()
    logits = q[:, :, list(places)].float() @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        mask = mask[:, None, None] if mask.ndim == 2 else mask
        mask = mask[:, :, list(places)] if mask.shape[-2] > 1 else mask
        logits = logits + mask if mask.is_floating_point() else logits.masked_fill(~mask, float("-inf"))
    return logits.softmax(-1)


def _last_place(part: list[int], whole: list[int]) -> int | None:
    """Where `part` begins in `whole`, for the last time."""
    for start in range(len(whole) - len(part), -1, -1):
        if whole[start : start + len(part)] == part:
            return start
    return None


def _on_image(values: Values, placement: Placement) -> Values:
    """A map of what the model saw, on the image's own grid: enlarged, without the padding, scaled back."""
    seen = cv2.resize(values, placement.given[::-1], interpolation=cv2.INTER_LINEAR)
    seen = np.ascontiguousarray(seen[: placement.scaled[0], : placement.scaled[1]])
    if placement.scaled != placement.source:
        seen = cv2.resize(seen, placement.source[::-1], interpolation=cv2.INTER_LINEAR)
    return np.asarray(seen, np.float32)
