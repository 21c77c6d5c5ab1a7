"""A LoRA trained by `mie train` on a tiny FLUX Fill: what is learnt, what is saved, what is refused."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("diffusers", reason="flux-fill-lora needs the extra `models`")
pytest.importorskip("peft", reason="flux-fill-lora needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")

import torch
import yaml
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from safetensors.torch import load_file
from typer.testing import CliRunner

from mie.cli import app
from mie.errors import ConfigError
from mie.perspectives.modification.inpainters import make_inpainter
from mie.perspectives.modification.inpainters.flux import _Options, load_lora, load_pipeline, read_facts
from mie.training.batches import seed_step
from mie.training.config import read_config
from mie.training.flux_lora import (
    DataConfig,
    FluxFillLora,
    ModelConfig,
    draw_levels,
    flow_inputs,
    flow_loss,
)
from mie.training.folder import read_log
from mie.training.loop import train
from tests.conftest import crop, ellipse
from tests.perspectives.modification.inpainters.flux_tiny import LATENT, write_tiny_flux
from tests.training.flux_tiny import lora_body, lora_config, write_skin_pack

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
STEPS = 30


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_flux(tmp_path_factory.mktemp("flux") / "base")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_skin_pack(tmp_path_factory.mktemp("skin") / "pack")


@pytest.fixture(scope="module")
def trained(pack: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By the command, from a file."""
    folder = tmp_path_factory.mktemp("trained")
    body = lora_body(pack, base, steps=STEPS, checkpoint={"every": 15}, validate={"every": STEPS})
    (folder / "lora.yaml").write_text(yaml.safe_dump(body))
    command = ["train", str(folder / "lora.yaml"), "-o", str(folder / "out"), "--device", "cpu"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return folder / "out"


def ready(pack: Path, base: Path, **changes: Any) -> FluxFillLora:
    made = FluxFillLora(lora_config(pack, base, **changes))
    made.check()
    made.prepare(CPU)
    return made


@pytest.fixture(scope="module")
def trainee(pack: Path, base: Path) -> FluxFillLora:
    return ready(pack, base)


@pytest.fixture
def without_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The VAE gives the mean of its latents, so that two ways to the same latents can be compared."""
    monkeypatch.setattr(DiagonalGaussianDistribution, "sample", lambda self, generator=None: self.mode())


def test_the_loss_of_a_fixed_batch_falls(trainee: FluxFillLora, trained: Path) -> None:
    batch = trainee.batch(0, 0, 1)

    def losses(model: torch.nn.Module) -> float:
        seed_step(3, 0)
        with torch.no_grad():
            return sum(trainee.loss(model, batch, 0)[0].item() for _ in range(4)) / 4

    model = trainee.model()
    before = losses(model)
    model.load_state_dict(load_file(trained / f"checkpoints/step-{STEPS:06d}/model.safetensors"))
    assert losses(model) < 0.9 * before


def test_a_checkpoint_holds_the_lora_alone(trainee: FluxFillLora, trained: Path) -> None:
    for name in ("model", "ema"):
        kept = load_file(trained / f"checkpoints/step-{STEPS:06d}/{name}.safetensors")
        assert kept.keys() == trainee.model().state_dict().keys()
        assert all(key.endswith(("/lora_A", "/lora_B")) for key in kept)
        assert all(4 in tensor.shape for tensor in kept.values()), "of rank 4"
    assert not any(p.requires_grad for p in trainee.pipe.vae.parameters())


def test_the_folder_says_what_was_trained(trained: Path, pack: Path) -> None:
    info = json.loads((trained / "train.json").read_text())
    assert info["status"] == "complete"
    digests = info["decisive"]["data_digests"]
    assert digests["packs"] == [json.loads((pack / "pack.json").read_text())["digest"]]
    assert len(digests["base"]) == 64
    assert (trained / f"grids/step-{STEPS:06d}.png").is_file()
    facts = read_facts(trained / "weights.safetensors")
    assert (facts["family"], facts["step"]) == ("dermoscopy", STEPS)
    lines = [line for line in read_log(trained / "log.jsonl") if line["event"] == "train"]
    assert all({"loss", "hole", "grad_norm"} <= line.keys() for line in lines)


def test_the_saved_lora_is_what_diffusers_loads(
    trainee: FluxFillLora, trained: Path, base: Path, without_chance: None
) -> None:
    """The same velocity by our lending and by `load_lora_weights`; alpha is twice the rank."""
    model = trainee.model()
    model.load_state_dict(load_file(trained / f"checkpoints/step-{STEPS:06d}/ema.safetensors"))
    inputs: dict[str, Any] = {}

    def catch(**given: Any) -> tuple[torch.Tensor]:
        inputs.update(given)
        found: tuple[torch.Tensor] = model(**given)
        return found

    trainee.loss(catch, trainee.batch(0, 0, 1), 0)  # type: ignore[arg-type]
    pipe = load_pipeline(base, CPU, torch.float32)
    with torch.no_grad():
        plain = pipe.transformer(**inputs)[0]
        load_lora(pipe, trained / "weights.safetensors", "dermoscopy")
        loaded = pipe.transformer(**inputs)[0]
        torch.testing.assert_close(loaded, model(**inputs)[0], atol=1e-5, rtol=1e-4)
    assert (loaded - plain).abs().max() > 0.01


def test_the_saved_lora_changes_the_fill(base: Path, trained: Path) -> None:
    image, mask = crop(1, 64, 64), ellipse(1, 64, 64)
    spec = f"flux-fill:{base},steps=2,size=64,device=cpu"
    filled = [
        make_inpainter(spec + lora, family="dermoscopy").fill(image, mask, seed=0)
        for lora in ("", f",lora={trained / 'weights.safetensors'}")
    ]
    assert (filled[0] != filled[1])[mask].any()


def test_a_lora_of_a_wider_model_is_refused(trained: Path, tmp_path: Path) -> None:
    wider = write_tiny_flux(tmp_path / "wider", heads=3)
    spec = f"flux-fill:{wider},steps=1,size=64,device=cpu,lora={trained / 'weights.safetensors'}"
    with pytest.raises(ConfigError, match=r"does not fit the base model[\s\S]*and \d+ more"):
        make_inpainter(spec, family="dermoscopy").fill(crop(1, 64, 64), ellipse(1, 64, 64), seed=0)


def test_resumed_it_ends_with_the_same_weights(
    pack: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digests(out: Path) -> list[str]:
        files = sorted((out / "checkpoints/step-000004").glob("*.safetensors"))
        assert len(files) == 3
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]

    config = lora_config(pack, base, model={"grid_steps": 0})
    train(config, tmp_path / "whole", device="cpu")
    whole_loss = FluxFillLora.loss

    def fails(self: FluxFillLora, model: Any, batch: Any, step: int) -> Any:
        if step == 3:
            raise KeyboardInterrupt
        return whole_loss(self, model, batch, step)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(FluxFillLora, "loss", fails)
        train(config, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out/weights.safetensors").exists()
    assert train(config, tmp_path / "out", device="cpu").complete
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_what_flux_is_given_is_what_the_pipeline_gives_it(
    trainee: FluxFillLora, without_chance: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, lesson = trainee.pipe, trainee._held_out[0]
    image = torch.from_numpy(lesson.image.copy()).permute(2, 0, 1)[None] / 255
    hole = torch.from_numpy(lesson.hole.copy())[None, None].float()
    seen: dict[str, Any] = {}

    def catch(**inputs: Any) -> tuple[torch.Tensor]:
        seen.update(inputs)
        return (torch.zeros_like(inputs["hidden_states"][..., : 4 * LATENT]),)

    monkeypatch.setattr(pipe.transformer, "forward", catch)
    words = {"prompt_embeds": trainee.words.embeds, "pooled_prompt_embeds": trainee.words.pooled}
    pipe(**words, image=image, mask_image=hole, height=64, width=64, num_inference_steps=1)
    problem = flow_inputs(pipe, image, hole)
    torch.testing.assert_close(problem.condition, seen["hidden_states"][..., 4 * LATENT :])
    torch.testing.assert_close(problem.places, seen["img_ids"])
    ours: dict[str, Any] = {}

    def model(**inputs: Any) -> torch.Tensor:
        ours.update(inputs)
        return torch.zeros_like(problem.latents)

    guidance = torch.tensor([30.0])
    noise = torch.zeros_like(problem.latents)
    flow_loss(model, problem, trainee.words, level=torch.ones(1), noise=noise, guidance=guidance)  # type: ignore[arg-type]
    for name in ("timestep", "guidance", "pooled_projections", "encoder_hidden_states", "txt_ids"):
        torch.testing.assert_close(ours[name], seen[name], msg=name)


def test_the_velocity_leads_from_noise_to_the_picture(
    trainee: FluxFillLora, without_chance: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One who knows the picture has no loss here, and the pipeline's own sampler then finds the picture."""
    pipe, batch = trainee.pipe, trainee.batch(0, 0, 1)
    image = batch["image"][:1].permute(0, 3, 1, 2) / 255
    hole = batch["hole"][:1, None].float()
    problem = flow_inputs(pipe, image, hole)

    def velocity(hidden_states: torch.Tensor, timestep: torch.Tensor, **_: Any) -> torch.Tensor:
        return (hidden_states[..., : 4 * LATENT] - problem.latents) / timestep[:, None, None]

    noise, level = torch.randn(problem.latents.shape), torch.tensor([0.6])
    flow = flow_loss(velocity, problem, trainee.words, level=level, noise=noise, guidance=None)  # type: ignore[arg-type]
    assert flow.loss.item() < 1e-9
    assert flow.hole.item() < 1e-9
    monkeypatch.setattr(pipe.transformer, "forward", lambda **inputs: (velocity(**inputs),))
    words = {"prompt_embeds": trainee.words.embeds, "pooled_prompt_embeds": trainee.words.pooled}
    found = pipe(
        **words, image=image, mask_image=hole, height=64, width=64, num_inference_steps=3,
        output_type="latent",
    ).images  # fmt: skip
    torch.testing.assert_close(found, problem.latents, atol=1e-4, rtol=1e-4)


def test_the_hole_counts_ten_times_its_surroundings(trainee: FluxFillLora, without_chance: None) -> None:
    image = torch.rand(1, 3, 64, 64)
    hole = torch.zeros(1, 1, 64, 64)
    hole[..., 16:32, 32:48] = 1  # one token
    problem = flow_inputs(trainee.pipe, image, hole)
    touched = (problem.weight == 1).all(2)[0].reshape(4, 4)
    assert touched.nonzero().tolist() == [[1, 2]]
    assert problem.weight.min().item() == pytest.approx(0.1)
    assert torch.equal(problem.inside.amax(2)[0].reshape(4, 4), touched.float())


def test_noise_levels_are_shifted_as_in_sampling(trainee: FluxFillLora) -> None:
    image, hole = torch.rand(1, 3, 64, 64), torch.ones(1, 1, 64, 64)
    problem, normal = flow_inputs(trainee.pipe, image, hole), torch.randn(200)
    shift = 0.5 + (1.15 - 0.5) * (16 - 256) / (4096 - 256)
    wanted = trainee.pipe.scheduler.time_shift(shift, 1.0, torch.sigmoid(normal))
    torch.testing.assert_close(draw_levels(trainee.pipe, problem, normal), wanted)


def test_average_and_model_share_the_transformer_and_nothing_else(trainee: FluxFillLora) -> None:
    model = trainee.model()
    average = copy.deepcopy(model).requires_grad_(False)
    batch = trainee.batch(0, 0, 1)

    def loss(some: torch.nn.Module) -> torch.Tensor:
        seed_step(0, 0)
        return trainee.loss(some, batch, 0)[0]

    first = loss(average).item()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3
    assert loss(model).item() != first
    assert loss(average).item() == first
    assert average._lent_to[0] is model._lent_to[0]


def test_checkpointing_changes_no_gradient(trainee: FluxFillLora) -> None:
    """Its second forward pass comes with the backward one: the factors must still be lent then."""
    batch, found = trainee.batch(0, 0, 1), []
    for how in ("enable", "disable"):
        getattr(trainee.pipe.transformer, f"{how}_gradient_checkpointing")()
        seed_step(3, -1)
        model = trainee.model()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith("lora_B"):
                    p.normal_()
        trainee.loss(model, batch, 0)[0].backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    trainee.pipe.transformer.enable_gradient_checkpointing()
    assert all(grad is not None for grad in found[0].values())
    torch.testing.assert_close(found[0], found[1])


def test_a_batch_is_a_function_of_seed_step_and_rank(trainee: FluxFillLora) -> None:
    def summary(step: int, rank: int = 0, world: int = 1) -> bytes:
        batch = trainee.batch(step, rank, world)
        return batch["image"].numpy().tobytes() + batch["hole"].numpy().tobytes()

    assert summary(3) == summary(3)
    assert len({summary(3), summary(4), summary(3, 1)}) == 3
    assert trainee.batch(0, 0, 2)["image"].shape == (1, 64, 64, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"family": "skin"}}, r"no such family[\s\S]*dermoscopy"),
        ({"data": {"family": "ct"}}, "no ct images to train on"),
        ({"data": {"size": 100}}, "multiple of 16"),
        ({"data": {"famly": "ct"}}, "did you mean 'family'"),
        ({"model": {"base": "nobody/FLUX"}}, "hf download nobody/FLUX"),
        ({"model": {"targets": ["no_such_layer"]}}, "no linear layer 'no_such_layer'"),
        ({"compile": True}, "not compiled"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_trained(
    pack: Path, base: Path, tmp_path: Path, changes: dict, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        train(lora_config(pack, base, **changes), tmp_path / "out", device="cpu")
    assert not (tmp_path / "out/checkpoints").exists()


def test_without_held_out_images_nothing_is_scored(pack: Path, base: Path) -> None:
    made = ready(pack, base)
    made._held_out = []
    assert made.validate(made.model()) == {"score": None, "flow": None}
    assert made.grid(made.model()) is None


def test_the_grid_shows_hole_fill_and_truth(trainee: FluxFillLora) -> None:
    shown = trainee.grid(trainee.model())
    assert shown.shape == (2 * 64, 3 * 64, 3)
    hole, truth = trainee._held_out[0].hole, trainee._held_out[0].image
    assert (shown[:64, :64][hole] == 255).all()
    assert np.array_equal(shown[:64, 64:128][~hole], truth[~hole])
    assert np.array_equal(shown[:64, 128:], truth)


def test_the_example_and_the_page_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIE_PACKS", "packs")
    monkeypatch.setenv("FLUX_FILL", "flux")
    made = FluxFillLora(read_config(ROOT / "examples/flux_fill_lora.yaml"))
    assert made.data.family == "dermoscopy"
    page = (ROOT / "docs/how-to/flux-fill.md").read_text(encoding="utf-8")
    keys = {**DataConfig.model_fields, **ModelConfig.model_fields, **_Options.__dataclass_fields__}
    assert [key for key in keys if f"`{key}`" not in page and key != "_"] == []
