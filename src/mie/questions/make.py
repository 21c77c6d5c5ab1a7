"""From views to questions: drafts of the templates, options in their order, and the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from mie.core.hashing import generator, sample_seed, stable_hash
from mie.errors import MieError
from mie.questions.record import Question, QuestionImage, QuestionMask, question_id
from mie.questions.templates import TEMPLATES, Draft, Template
from mie.questions.templates.template import MOST_OPTIONS, only_answer
from mie.questions.views import View
from mie.questions.words import filled
from mie.records import Mask, Pixels, Rejection

HEALED_AREA: Final = "(healed area)"  # the target under which a healed image's hole is stored
_POOL: Final = 8  # candidates that wrong options are drawn from


@dataclass(frozen=True, slots=True)
class Made:
    """A question, what its text names, and the images (before any mark) that it is about."""

    question: Question
    subject: str
    cases: tuple[str, ...]  # keys of the images, as `image_key` gives them
    drawn: bool = False  # the images are shown with outlines or boxes


def image_key(view: View) -> str:
    """Names an image of a build; that of a healed one is its original's."""
    return f"{view.source}//{view.case_id}"


@dataclass
class Maker:
    """Makes questions; pictures that several of them share are encoded once."""

    seed: int
    per_image: int
    templates: Sequence[str] | None = None
    open_share: float = 0.2
    _images: dict[int, tuple[View, QuestionImage]] = field(default_factory=dict)
    _masks: dict[int, tuple[View, tuple[tuple[str, QuestionImage], ...]]] = field(default_factory=dict)

    @property
    def _chosen(self) -> list[Template]:
        return [t for t in TEMPLATES.values() if self.templates is None or t.name in self.templates]

    def about(self, view: View) -> Iterator[Made | Rejection]:
        """Questions about one image: one of each template first, then second ones, up to `per_image`."""
        rounds: list[list[tuple[Template, Draft]]] = []
        for template in self._chosen:
            if template.drafts is None or (view.healed and template.task != "AS"):
                continue
            for at, draft in enumerate(template.drafts(view, self._random(template, [view]))):
                while len(rounds) <= at:
                    rounds.append([])
                rounds[at].append((template, draft))
        order = self._random(None, [view])
        drafts = [one[int(at)] for one in rounds for at in order.permutation(len(one))]
        for template, draft in drafts[: self.per_image]:
            yield self._question(template, [view], draft)

    def across(self, views: Sequence[View]) -> Iterator[Made | Rejection]:
        """Questions about several images of one split."""
        for template in self._chosen:
            if template.several is not None and len(views) > 1:
                for shown, draft in template.several(views, self._random(template, views[:1])):
                    yield self._question(template, shown, draft)

    def forget(self) -> None:
        """Drop the encoded pictures."""
        self._images.clear()
        self._masks.clear()

    def _random(self, template: Template | None, views: Sequence[View]) -> np.random.Generator:
        name = "" if template is None else template.name
        keys = [[image_key(view), list(view.healed)] for view in views]
        return generator(stable_hash("questions", self.seed, name, keys))

    def _question(self, template: Template, views: Sequence[View], draft: Draft) -> Made | Rejection:
        keys = [[image_key(view), list(view.healed)] for view in views]
        ident = question_id(template.name, keys, dict(draft.params))
        seed = sample_seed(self.seed, ident)
        rng = generator(seed)
        kind = template.kind
        if template.opens and rng.random() < self.open_share:
            kind = "open"
        try:
            answer, options = _key(template, views, draft, kind, rng)
        except MieError as error:
            return Rejection(
                views[0].source, views[0].case_id, "evidence", f"{template.name}: {error.reason}"
            )
        phrasing = template.phrasings[int(rng.integers(len(template.phrasings)))] + template.tail
        about = _answer_view(views, answer)
        question = Question(
            id=ident,
            kind=kind,
            text=filled(phrasing, draft.words),
            answer=answer,
            images=tuple(self._shown(views, draft)),
            options=options,
            tolerance=draft.tolerance if kind in ("number", "point", "box") else None,
            unit=draft.unit,
            task=draft.task or template.task,
            modality=about.modality,
            submodality=about.submodality,
            anatomy=about.anatomy,
            template=template.name,
            source=about.source,
            case_id=about.case_id,
            patient_id=about.patient_id,
            split=about.split,
            evidence={
                "template": template.name,
                "params": dict(draft.params),
                "images": [view.facts() for view in views],
            },
            masks=tuple(
                QuestionMask(at, target, mask)
                for at, view in enumerate(views)
                for target, mask in self._stored_masks(view)
            ),
            seed=seed,
            license="; ".join(dict.fromkeys(view.license for view in views)),
            flags=("counterfactual",) if any(view.healed for view in views) else (),
        )
        cases = tuple(dict.fromkeys(map(image_key, views)))
        return Made(question, draft.subject, cases, draft.shown is not None)

    def _shown(self, views: Sequence[View], draft: Draft) -> Iterator[QuestionImage]:
        if draft.shown is not None:
            yield from map(_picture, draft.shown)
            return
        for view in views:
            if id(view) not in self._images:
                self._images[id(view)] = view, _picture(view.image)  # the view is kept: no other gets its id
            yield self._images[id(view)][1]

    def _stored_masks(self, view: View) -> tuple[tuple[str, QuestionImage], ...]:
        if id(view) not in self._masks:
            masks: dict[str, Mask] = dict(view.masks)
            if view.hole is not None:
                masks[HEALED_AREA] = view.hole
            stored = tuple(
                (name, _picture(mask.view(np.uint8) * np.uint8(255))) for name, mask in masks.items()
            )
            self._masks[id(view)] = view, stored
        return self._masks[id(view)][1]


def _picture(pixels: Pixels) -> QuestionImage:
    image = QuestionImage.of(pixels)
    image.path = f"{image.digest[:16]}.png"
    return image


def _answer_view(views: Sequence[View], answer: str) -> View:
    """The image that the answer is about: of "Image 3" the third; else the first."""
    number = answer.removeprefix("Image ")
    return views[int(number) - 1] if answer.startswith("Image ") and number.isdigit() else views[0]


def _key(
    template: Template, views: Sequence[View], draft: Draft, kind: str, rng: np.random.Generator
) -> tuple[str, tuple[str, ...]]:
    """(answer, options in their order). `MieError` unless exactly one option is true of the images."""
    if template.value is not None:
        return template.value(views, draft.params), ()
    pool = list(dict.fromkeys(draft.wrong))[:_POOL]
    order = sorted(rng.permutation(len(pool)).tolist(), key=lambda at: at >= draft.near)
    wrong = [pool[at] for at in order[: MOST_OPTIONS - 1]]
    options = [draft.right, *wrong]
    check_options(template, views, draft.params, options, draft.right)
    if kind == "open":
        return draft.right, ()
    if draft.fixed:
        return draft.right, tuple(sorted(options))
    return draft.right, tuple(options[int(at)] for at in rng.permutation(len(options)))


def check_options(
    template: Template,
    views: Sequence[View],
    params: Mapping[str, Any],
    options: Sequence[str],
    answer: str,
) -> None:
    """Raise `MieError` unless the answer, and no other option, is true of the images."""
    true = only_answer(template, views, params, options)
    if true != [answer]:
        raise MieError(
            "the evidence contradicts the key"
            if answer not in true
            else "several options are true of the image",
            expected=f"only {answer!r}",
            found=", ".join(map(repr, true)) or "none of the options",
        )
