"""BERTScore F1 (Zhang et al. 2020) with a model that lies in a folder on this machine.

Each token of the answer is matched with the most similar token of the reference and the other way round, by
the cosine of their hidden states; special tokens can be matched but have no weight. `baseline` rescales:
(F1 - baseline) / (1 - baseline). Nothing is downloaded, and no code of the folder runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from mie.core.environment import install_hint
from mie.core.spec import construct, parse_spec
from mie.errors import ConfigError, MieError

_BATCH: Final = 64
_MOST_TOKENS: Final = 512


class BertScore:
    """`folder` holds an encoder as transformers saves one; `layer` counts from 0, the embeddings."""

    def __init__(
        self, folder: str, *, layer: int | None = None, baseline: float = 0.0, device: str | None = None
    ) -> None:
        if not (Path(folder) / "config.json").is_file():
            raise ConfigError(
                "no model for BERTScore here",
                where=folder,
                expected="a folder with config.json, as transformers saves one",
            )
        if not baseline < 1:
            raise ConfigError("not a baseline", expected="a number below 1", found=baseline)
        self._folder, self._layer, self._baseline, self._device = folder, layer, baseline, device
        self._loaded: tuple[Any, Any] | None = None

    @classmethod
    def of(cls, spec: str) -> BertScore:
        """Of `FOLDER,layer=40,baseline=0.7`."""
        return construct(cls, parse_spec(f"bertscore:{spec}", noun="BERTScore"), noun="BERTScore")

    def record(self) -> dict[str, Any]:
        """What the numbers depend on."""
        weights = sorted(Path(self._folder).glob("*.safetensors"))
        from mie.core.files import digest

        return {
            "model": Path(self._folder).resolve().name,
            "weights": [digest(path) for path in weights],
            "layer": self._layer,
            "baseline": self._baseline,
        }

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The F1 of each (answer, reference); an answer without a token of its own has 0."""
        out: list[float] = []
        for start in range(0, len(pairs), _BATCH):
            out += self._batch(pairs[start : start + _BATCH])
        return out

    def _batch(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        torch: Any = import_module("torch")
        tokenizer, model = self._loaded = self._loaded or self._load()
        texts = [text for pair in pairs for text in pair]
        encoded = tokenizer(
            texts, padding=True, truncation=True, max_length=_MOST_TOKENS, return_tensors="pt",
            return_special_tokens_mask=True,
        )  # fmt: skip
        special = encoded.pop("special_tokens_mask").bool()
        encoded = encoded.to(model.device)
        with torch.inference_mode():
            states = model(**encoded, output_hidden_states=True).hidden_states
        layer = len(states) - 1 if self._layer is None else self._layer
        if not 0 <= layer < len(states):
            raise ConfigError(
                "the model has no such layer",
                where=self._folder,
                expected=f"0 to {len(states) - 1}",
                found=layer,
            )
        vectors = torch.nn.functional.normalize(states[layer].float(), dim=-1).cpu()
        there = encoded["attention_mask"].bool().cpu()
        counted = there & ~special
        found = []
        for at in range(0, len(texts), 2):
            likeness = vectors[at][there[at]] @ vectors[at + 1][there[at + 1]].T
            precision = _mean(likeness.max(dim=1).values[counted[at][there[at]]])
            recall = _mean(likeness.max(dim=0).values[counted[at + 1][there[at + 1]]])
            f1 = 0.0 if precision + recall <= 0 else 2 * precision * recall / (precision + recall)
            found.append((f1 - self._baseline) / (1 - self._baseline))
        return found

    def _load(self) -> tuple[Any, Any]:
        try:
            torch: Any = import_module("torch")
            transformers: Any = import_module("transformers")
        except ImportError as error:
            raise ConfigError(
                "BERTScore needs torch and transformers", found=error, fix=install_hint("models")
            ) from None
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(self._folder, **options)
            model = transformers.AutoModel.from_pretrained(self._folder, use_safetensors=True, **options)
        except (OSError, ValueError, ImportError) as error:
            raise MieError("cannot load the model for BERTScore", where=self._folder, found=error) from error
        return tokenizer, model.to(device).eval()


def _mean(values: Any) -> float:
    return float(values.mean()) if len(values) else 0.0
