"""The compact editor as a trainee: its configuration, its losses, and what its weights file says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import AliasChoices, Field
from torch import Tensor, nn

from mie.core.files import digest
from mie.core.registry import nearest_name
from mie.editors.compact.inference import representatives
from mie.editors.compact.kinds import EDIT_KINDS, PERSPECTIVE_OF, EditKind
from mie.errors import ConfigError
from mie.networks.compact import TEXT_WIDTH, CompactNet, NetConfig, load_weights, save_weights
from mie.networks.pretrained import read_pth_tensors
from mie.networks.shipped import COMPACT, shipped_weights
from mie.networks.text import TOKENS, EmbeddingCache, TextEncoder
from mie.networks.trunk import BACKBONES, Trunk
from mie.networks.weights import fit
from mie.records import Pixels
from mie.training.augment import STRENGTHS
from mie.training.batches import step_seed
from mie.training.compact_data import SIDE, Choices, CompactData, Views
from mie.training.compact_validation import Validation, hole_cases
from mie.training.config import Strict, TrainConfig, parse_section
from mie.training.losses import Texture, change_loss, overlay_loss, restoration_loss
from mie.training.pack import TRAIN, VALIDATION, Pack, read_pack
from mie.training.simulate import add_pairs, fresh_pairs, wide_jobs
from mie.training.trainee import Trainee
from mie.training.wordings import is_own_template

_VALIDATED_HOLES = 40
SHIPPED: Final = "shipped"  # as a name of weights to start from
_SHAPE: Final = {"backbone", "widths", "down", "up", "detail", "change", "local", "restoration"}
Width = Annotated[int, Field(gt=0, multiple_of=8)]  # shared out among heads of attention and groups


class DataConfig(Strict):
    """Where the packs are (`mie pack`), and how a batch is made up of them."""

    packs: list[str] = Field(min_length=1)
    shares: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {"perception": 0.6, "transformation": 0.4}, min_length=1
    )
    absent: float = Field(0.07, ge=0, lt=1, description="share of rows whose target is not in the image")
    healthy: float = Field(0, ge=0, le=1, description="share of those whose lesion a counterfactual removed")
    fresh: int = Field(0, ge=0, description="new simulations for each target, made before the first step")
    bent: float = Field(0, ge=0, le=1, description="share of new CT simulations from warped, smaller images")
    leave_out: list[str] = Field([], description="sources not trained on, with their twins NAME_more")
    validate_rows: int = Field(600, ge=1)
    merge: bool = Field(False, description="rows of one target and modality are one group")
    patients: bool = Field(False, description="a group's n is the geometric mean of its rows and patients")
    power: float = Field(0.5, ge=0, le=1, description="a group of n rows is drawn by n to this power")
    emphasis: dict[str, Annotated[float, Field(gt=0)]] = Field({}, description="of transformation targets")
    augment: Literal["usual", "strong"] = "usual"
    smoothing: float = Field(0, ge=0, lt=0.5, description="of the masks of groups below 50 rows")
    holes: float = Field(0, ge=0, le=1, description="share of modifications whose hole is made in training")
    painted: bool = Field(False, description="find lesions that were painted into healthy images, too")
    mild: float = Field(0, ge=0, le=1, description="share of pairs shown with a part of their fault")


class ModelConfig(Strict):
    """The network's shape, and the file of the trunk's pretrained weights (none: from scratch)."""

    trunk: str | None = None
    start: str | None = Field(
        None, description="weights to start from, whose shape is taken over; `shipped` for those of mie"
    )
    backbone: Literal["mobilenetv2", "efficientnet-lite2"] = "mobilenetv2"
    trunk_lr: float = Field(0.2, gt=0, le=1, description="the pretrained trunk's share of the learning rate")
    widths: tuple[Width, Width, Width, Width] = (64, 96, 192, 320)
    down: tuple[int, int, int, int] = (1, 2, 2, 2)
    up: tuple[int, int, int] = (2, 1, 1)
    detail: int = Field(0, ge=0, description="blocks of a branch at full resolution")
    dropout: float = Field(0, ge=0, lt=1)
    drop_path: float = Field(0, ge=0, lt=1)
    change: bool | None = Field(
        None, description="the gate for modification; where it is trained, by default"
    )
    texture: float = Field(0.1, ge=0, description="weight of the grain of modifications")
    local: bool = Field(False, description="an extra channel: the image's local contrast")
    restoration: tuple[Width, Width, Width, Width] | None = Field(
        None,
        validation_alias=AliasChoices("restoration", "mender"),  # older training files say `mender`
        description="widths of a network for transformation alone",
    )
    restoration_lr: float = Field(
        1,
        gt=0,
        le=1,
        validation_alias=AliasChoices("restoration_lr", "mender_lr"),
        description="its share of the learning rate",
    )


class Compact(Trainee):
    score = "score"

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.data = parse_section(DataConfig, config.data, where="data")
        self.shape = parse_section(ModelConfig, config.model, where="model")
        self.kinds = {EDIT_KINDS[name] for name in self.data.shares if name in EDIT_KINDS}
        self.slower = {"trunk.": self.shape.trunk_lr, "mender.": self.shape.restoration_lr}

    def check(self) -> Mapping[str, Any]:
        trunk = self._trunk()
        if trunk is not None:
            self._pretrain(Trunk(backbone=BACKBONES[self.shape.backbone]), trunk)
        self._packs = [read_pack(self.config.path(path)) for path in self.data.packs]
        self._leave_out()
        self._refuse_empty_shares()
        if EditKind.AREA in self.kinds and not self._gated():
            raise ConfigError("modification needs its gate", where="model.change", found=False)
        digests: dict[str, Any] = {"packs": [pack.facts["digest"] for pack in self._packs]}
        if trunk is not None:
            digests["trunk"] = digest(trunk)
        if self.shape.start is not None:
            self._refuse_other_shape()
            digests["start"] = digest(self._start())
        return digests

    def prepare(self, device: torch.device) -> None:
        self.device = device
        packs = [self._with_fresh_pairs(pack) for pack in self._packs]
        self.pool = CompactData(packs, TRAIN, device, self._choices())
        self.texture = Texture(device)
        encoder = EmbeddingCache(encoder=TextEncoder(device=str(device)))
        tokens, mask = encoder.encode(self.pool.prompts.texts)
        self.tokens, self.token_mask = tokens.to(device), mask.to(device)
        rows = [
            (pack, row)
            for pack in self._packs
            for row in pack.rows
            if row.fold == VALIDATION and row.perspective in self.data.shares
        ]
        seed = self.config.seed
        holes = hole_cases(self._packs, _VALIDATED_HOLES, seed) if self._choices().holes else []
        half = self.config.precision == "bf16"
        self.validation = Validation(rows, self.data.validate_rows, encoder, device, seed, holes, half=half)

    def model(self) -> nn.Module:
        net = CompactNet(self._net_config())
        if net.restoration is not None and not self._restores():
            # No row passes through it, and it reads the text with the rest: it must keep working.
            net.restoration.requires_grad_(False)
            net.reader.requires_grad_(False)
        elif net.restoration is not None and len(self.data.shares) == 1:
            net.requires_grad_(False)  # no row passes through the rest; its values stay
            # The rest reads the text with it too: where it was trained before, it must keep working.
            net.reader.requires_grad_(self.shape.start is None)
            net.restoration.requires_grad_(True)
        if (path := self._trunk()) is not None:
            self._pretrain(net.trunk, path)
        if self.shape.start is not None:
            fit(net, self._begun[0], self._start())
        return net

    @cached_property
    def flops_per_image(self) -> float:  # type: ignore[override]
        """Operations of a forward and a backward pass (twice the forward) at a view's side; counted, not run.

        With a restoration network it is the mean over the rows of a batch, each of which passes one network.
        """
        from torch.utils.flop_counter import FlopCounterMode

        with torch.device("meta"):
            net = CompactNet(self._net_config())
            image, tokens = torch.empty(1, 3, SIDE, SIDE), torch.empty(1, TOKENS, TEXT_WIDTH)
            mask = torch.ones(1, TOKENS, dtype=torch.bool)
            with FlopCounterMode(display=False) as counter:
                net(image, tokens, mask)
            if net.restoration is None or not self._restores():
                return 3.0 * counter.get_total_flops()
            with FlopCounterMode(display=False) as restoring:
                net.restore(image, tokens, mask)
        share = self.data.shares[PERSPECTIVE_OF[EditKind.IMAGE]] / sum(self.data.shares.values())
        return 3.0 * ((1 - share) * counter.get_total_flops() + share * restoring.get_total_flops())

    def batch(self, step: int, rank: int, world: int) -> Any:
        seed = step_seed(self.config.seed, step, rank)
        rng = np.random.default_rng(seed)
        count = self.config.batch // world
        return {"seed": seed, **self.pool.choose(rng, count, self.data.shares, self.data.absent)}

    def loss(self, model: nn.Module, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        views = self.pool.views(batch, batch["seed"])
        hole = (views.hole,) if self._gated() else ()
        inputs = (views.image, self.tokens[views.prompt].float(), self.token_mask[views.prompt], *hole)
        if self._restores():
            start, end = len(views.overlay), len(views.image) - len(views.area)
            rest = [torch.cat([part[:start], part[end:]]) for part in inputs]
            heads = model(*rest, restore=tuple(part[start:end] for part in inputs[:3]))
        else:
            heads = model(*inputs)
        return _total_loss(views, heads, self.texture, self.shape.texture)

    def validate(self, model: nn.Module) -> dict[str, float | None]:
        return self.validation.figures(model)

    def grid(self, model: nn.Module) -> Pixels | None:
        return self.validation.grid(model)

    def editor(self, product: Path) -> str:
        return f"compact:{product}"

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        before = {} if self.shape.start is None else self._begun[2]
        # What was learnt before this training stays in the weights.
        facts = {**facts, **{key: before[key] for key in ("taught", "targets") if key in before}}
        if EditKind.IMAGE in self.kinds:
            facts = {**facts, "taught": self._taught(cast(CompactNet, model))}
        if EditKind.OVERLAY in self.kinds:
            facts = {**facts, "targets": self._targets(before.get("targets", {}))}
        save_weights(path, model.state_dict(), self._net_config(), facts)

    def _targets(self, before: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Return what was painted alone, by modality, now or before."""
        painted = {modality: set(names) for modality, names in before.items()}
        for pack in self._packs:
            for row in pack.rows:
                if row.fold == TRAIN and row.kind is EditKind.OVERLAY and row.task != "holistic":
                    painted.setdefault(row.modality, set()).add(row.target)
        return {modality: sorted(painted[modality]) for modality in sorted(painted)}

    @torch.no_grad()
    def _taught(self, model: CompactNet) -> dict[str, list[str]]:
        """Return how transformations were asked for, as `inference.TaughtTransformations` takes it."""
        instructions = {
            pack.instructions[row.instruction]
            for pack in self._packs
            for row in pack.rows
            if row.fold == TRAIN and row.kind is EditKind.IMAGE
        }
        # What is taken for another wording is shown to people: without the frame of a wide one, if possible.
        wordings_of = {one: [w for w in one.wordings if is_own_template(w.template)] for one in instructions}
        templates = {w.prompt: w.template for one, own in wordings_of.items() for w in own or one.wordings}
        prompts = sorted(templates)
        place = next(model.parameters()).device
        tokens, mask = (t.to(place) for t in EmbeddingCache().encode(prompts))
        vectors = model.reader(tokens.float(), mask).vector
        wordings = []
        for template in sorted(set(templates.values())):
            same = [at for at, prompt in enumerate(prompts) if templates[prompt] == template]
            wordings += [prompts[same[at]] for at in representatives(vectors[same])]
        return {"readings": [prompts[at] for at in representatives(vectors)], "wordings": wordings}

    @cached_property
    def _begun(self) -> tuple[dict[str, Tensor], NetConfig, dict[str, Any]]:
        return load_weights(self._start())

    def _start(self) -> Path:
        if self.shape.start == SHIPPED:
            return shipped_weights(COMPACT, fix="install mie again")
        return self.config.path(self.shape.start or "")

    def _refuse_other_shape(self) -> None:
        """Raise where the training file asks for another network than that of the weights."""
        found = self._begun[1]
        for key in _SHAPE & self.shape.model_fields_set:
            wanted, has = getattr(self.shape, key), getattr(found, key)
            if wanted is not None and wanted != has:
                raise ConfigError(
                    "the weights to start from are of another shape",
                    where=f"model.{key}",
                    expected=f"{has}, as in {self._start()}",
                    found=wanted,
                    fix=f"leave out {key}: it is taken from the weights",
                )

    def _net_config(self) -> NetConfig:
        shape = self.shape
        if shape.start is not None:
            return replace(self._begun[1], dropout=shape.dropout, drop_path=shape.drop_path)
        return NetConfig(
            shape.widths,
            shape.down,
            shape.up,
            change=self._gated(),
            detail=shape.detail,
            dropout=shape.dropout,
            drop_path=shape.drop_path,
            local=shape.local,
            restoration=shape.restoration or () if EditKind.IMAGE in self.kinds else (),
            backbone=shape.backbone,
        )

    def _restores(self) -> bool:
        """Whether rows pass through a restoration network."""
        return EditKind.IMAGE in self.kinds and bool(self._net_config().restoration)

    def _gated(self) -> bool:
        if self.shape.start is not None:
            return self._begun[1].change
        return EditKind.AREA in self.kinds if self.shape.change is None else self.shape.change

    def _choices(self) -> Choices:
        data = self.data
        return Choices(
            merge=data.merge,
            patients=data.patients,
            power=data.power,
            emphasis=data.emphasis,
            strength=STRENGTHS[data.augment],
            smoothing=data.smoothing,
            holes=data.holes if EditKind.AREA in self.kinds else 0.0,
            healthy=data.healthy,
            painted=data.painted,
            mild=data.mild,
        )

    def _with_fresh_pairs(self, pack: Pack) -> Pack:
        if not self.data.fresh:
            return pack
        jobs = wide_jobs(pack, self.data.fresh, seed=self.config.seed)
        progress = lambda done, total: self.notify(f"simulating pairs, {done} of {total}")
        seed, bent = self.config.seed, self.data.bent
        return add_pairs(pack, fresh_pairs(pack, jobs=jobs, bent=bent, seed=seed, progress=progress))

    def _refuse_empty_shares(self) -> None:
        """Raise for a share without rows: it would silently make every batch smaller."""
        rows = [row for pack in self._packs for row in pack.rows if row.fold == TRAIN]
        perspectives = {row.perspective for row in rows}
        if self.data.holes and any(row.task == "lesion" for row in rows):
            perspectives.add(PERSPECTIVE_OF[EditKind.AREA])
        if self.data.healthy and not any(row.task == "removal" for row in rows):
            raise ConfigError(
                "no picture whose lesion was removed",
                where="data.healthy",
                found="packs without removals",
                fix="pack a dataset of modification too, or leave out data.healthy",
            )
        for name in self.data.shares:
            if name not in perspectives:
                raise ConfigError(
                    f"no {name} to train on",
                    where=f"data.shares.{name}",
                    found=f"training rows of {' and '.join(sorted(perspectives)) or 'no perspective'}",
                    fix="give shares of what the packs contain, as in shares: {perception: 1}",
                )

    def _leave_out(self) -> None:
        """Drop the sources that are not to be trained on; an unknown name is an error."""
        sources = {row.source for pack in self._packs for row in pack.rows}
        for name in self.data.leave_out:
            if name not in sources:
                near = nearest_name(name, sources)
                raise ConfigError(
                    f"no source {name!r} in the packs",
                    where="data.leave_out",
                    fix=f"did you mean {near!r}?" if near else None,
                )
        # NAME_more holds other images of the data set NAME: both, or neither.
        left_out = {data_set_of(name) for name in self.data.leave_out}
        for pack in self._packs:
            pack.rows = [row for row in pack.rows if data_set_of(row.source) not in left_out]

    def _pretrain(self, trunk: Trunk, path: Path) -> None:
        trunk.load_pretrained(read_pth_tensors(path))

    def _trunk(self) -> Path | None:
        if self.shape.trunk is None or self.shape.start is not None:
            return None
        return self.config.trunk_file(self.shape.trunk)


def data_set_of(source: str) -> str:
    """Return the data set that a source belongs to.

    >>> data_set_of("isic2018_skin_more"), data_set_of("isic2018_skin")
    ('isic2018_skin', 'isic2018_skin')
    """
    return source.removesuffix("_more")


def _total_loss(
    views: Views, heads: Any, texture: Texture | None = None, grain: float = 0.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weighted sum, and its parts. `grain` is the weight of `texture`.

    With a restoration network the heads have no rows that map the whole image; only `perspective` has all,
    with those last.
    """
    p, m = len(views.overlay), len(views.area)
    t = len(views.image) - p - m
    painted = overlay_loss(heads.overlay[:p], views.overlay, views.counted, views.asked, views.smooth)
    residual, perspective = heads.residual, views.perspective
    if heads.restored is not None:
        residual = torch.cat([residual[:p], heads.restored, residual[p:]])
        perspective = torch.cat([perspective[:p], perspective[p + t :], perspective[p : p + t]])
    flat = views.grey[:, None, None, None]
    residual = torch.where(flat, residual.mean(1, keepdim=True).expand_as(residual), residual)
    output = views.image[p:] + residual[p:]
    restored = restoration_loss(output[:t], views.goal[:t])
    # Each head stays silent where the other works.
    still = heads.residual[:p].abs().mean() if p else painted.new_zeros(())
    closed = F.softplus(heads.overlay[p:]).mean() if p < len(heads.overlay) else painted.new_zeros(())
    kind = F.cross_entropy(heads.perspective, perspective)
    presence = painted.new_zeros(())
    if p:
        presence = F.binary_cross_entropy_with_logits(heads.presence[:p], views.present)
    count = len(views.image)
    loss = (painted.sum() + restored.sum()) / count + 0.5 * still + 0.1 * closed + 0.1 * kind + 0.1 * presence
    # A kind without rows in the batch has no mean.
    parts = {name: value for name, value in (("overlay", painted), ("restoration", restored)) if len(value)}
    parts |= {"perspective": kind, "presence": presence}
    if m:
        area_loss, area_parts = _area_loss(views, heads, output[t:], views.goal[t:])
        grains = views.area.new_zeros(m)
        if texture is not None:
            grains = texture(output[t:], views.goal[t:], views.area)
        loss = loss + (area_loss.sum() + grain * grains.sum()) / count
        parts |= {**area_parts, "texture": grains}
    return loss, {name: value.detach().mean() for name, value in parts.items()}


def _area_loss(views: Views, heads: Any, output: Tensor, goal: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return `(M,)`: is the area found, what is drawn in it, and is the rest left alone."""
    m = len(output)
    asked = (views.area.sum((1, 2, 3)) > 0)[:, None]
    gate = overlay_loss(heads.change[-m:], views.area, torch.ones_like(views.area), asked)
    drawn = change_loss(output, goal, views.area)
    outside = ((output - views.image[-m:]).abs() * (1 - views.area)).mean((1, 2, 3))
    presence = F.binary_cross_entropy_with_logits(heads.presence[-m:], views.removable, reduction="none")
    return gate + drawn + 0.5 * outside + 0.1 * presence * views.removal, {"gate": gate, "change": drawn}
