"""OmniGen2's transformer and flow: the numbers of the public code, and batches that equal their samples."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="networks need the extra `models`")

from mie.networks.omnigen2 import (  # noqa: E402
    OmniGen2Config,
    OmniGen2Transformer,
    make_layout,
    rotate,
)
from mie.networks.omnigen2_flow import (  # noqa: E402
    Conditions,
    Guidance,
    NotFiniteError,
    flow_loss,
    noisy,
    sample,
    sampler_times,
    training_times,
)

PUBLISHED = json.loads((Path(__file__).parent.parent / "fixtures/omnigen2_parity.json").read_text())
SIZES = [(8, 8), (12, 8), (6, 10)]
REFERENCES = [[(8, 8)], [], [(4, 6), (8, 2)]]
LENGTHS = [7, 4, 6]


def wave(shape, a, scale):
    k = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (torch.sin(a * k + a) * scale).float().reshape(shape)


@pytest.fixture(scope="module")
def model():
    model = OmniGen2Transformer(OmniGen2Config.from_mapping(PUBLISHED["config"]))
    state = {}
    for i, (name, value) in enumerate(sorted(model.state_dict().items())):
        state[name] = wave(value.shape, 0.37 + 0.013 * i, 0.15)
        norm = value.ndim == 1 and name.endswith("weight") and "norm" in name
        if norm or name == "time_caption_embed.caption_embedder.0.weight":
            state[name] += 1
    model.load_state_dict(state, strict=True)
    return model


@pytest.fixture(scope="module")
def batch():
    images = [wave((4, *size), 0.71 + 0.1 * i, 1) for i, size in enumerate(SIZES)]
    noise = [wave((4, *size), 1.13 + 0.1 * i, 1) for i, size in enumerate(SIZES)]
    references = [
        [wave((4, *size), 0.53 + 0.07 * i + 0.03 * j, 1) for j, size in enumerate(sizes)]
        for i, sizes in enumerate(REFERENCES)
    ]
    conditions = Conditions(wave((3, 7, 16), 0.29, 1), LENGTHS, references)
    return images, noise, conditions, torch.tensor(PUBLISHED["t"])


def velocity(model, batch):
    images, noise, conditions, t = batch
    latents = noisy(images, noise, t)
    layout = conditions.layout(model, [tuple(z.shape[1:]) for z in latents])
    return model(latents, t, conditions.text, conditions.references, layout)


def test_velocity_loss_and_gradients_equal_the_public_code(model, batch):
    v = velocity(model, batch)
    for ours, first, norm in zip(v, PUBLISHED["velocity_first8"], PUBLISHED["velocity_norm"], strict=True):
        torch.testing.assert_close(ours.flatten()[:8], torch.tensor(first), atol=1e-4, rtol=0)
        assert ours.norm().item() == pytest.approx(norm, abs=1e-4)
    loss = flow_loss(v, *batch[:2])
    assert loss.item() == pytest.approx(PUBLISHED["loss"], abs=1e-6)
    model.zero_grad()
    loss.backward()
    gradients = {name: p.grad.norm().item() for name, p in model.named_parameters()}
    assert len(gradients) == len(PUBLISHED["grad_norm"]) == 89
    assert gradients == pytest.approx(PUBLISHED["grad_norm"], rel=1e-3, abs=0)


def test_four_guided_steps_equal_the_public_code(model, batch):
    conditions = batch[2]
    given = Conditions(conditions.text[:1], [7], conditions.references[:1])
    negative = Conditions(wave((1, 3, 16), 0.91, 1), [3], conditions.references[:1])
    steps = []
    z = sample(
        model,
        wave((1, 4, 8, 8), 1.57, 1),
        given,
        negative,
        steps=4,
        guidance=Guidance(text=5, image=2),
        on_step=lambda *done: steps.append(done),
    )
    torch.testing.assert_close(z.flatten()[:8], torch.tensor(PUBLISHED["sampled_first8"]), atol=1e-4, rtol=0)
    assert z.norm().item() == pytest.approx(PUBLISHED["sampled_norm"], abs=1e-4)
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("pixels", [128, 256, 512, 1024])
def test_times_equal_the_public_code(pixels):
    side = pixels // 8
    shifted = training_times(torch.tensor(PUBLISHED["train_shift_of"]), (side // 2) ** 2)
    torch.testing.assert_close(
        shifted, torch.tensor(PUBLISHED["train_shift"][f"{pixels}px"]), atol=1e-6, rtol=0
    )
    times = sampler_times(6, (side, side))
    torch.testing.assert_close(
        times, torch.tensor(PUBLISHED["sampler_times_6"][f"{pixels}px"]), atol=1e-6, rtol=0
    )


def test_a_batch_equals_its_samples_one_by_one(model, batch):
    images, noise, conditions, t = batch
    together = velocity(model, batch)
    for i, length in enumerate(LENGTHS):
        # Padding that a longer text leaves behind must not be read.
        text = torch.cat([conditions.text[i, :length], torch.full((3, 16), 1e4)])[None]
        one = Conditions(text, [length], conditions.references[i : i + 1])
        alone = velocity(model, (images[i : i + 1], noise[i : i + 1], one, t[i : i + 1]))
        torch.testing.assert_close(alone[0], together[i], atol=2e-5, rtol=0)


def test_a_batch_of_one_shape_needs_no_mask(model):
    layout = make_layout(model.config, [5, 5], [[(4, 4)], [(4, 4)]], [(8, 8), (8, 8)])
    assert layout.references is not None
    streams = (layout.text, layout.references, layout.noise, layout.joint)
    assert [stream.mask for stream in streams] == [None] * 4


def test_checkpointing_changes_no_gradient(model, batch):
    def gradients():
        model.zero_grad()
        flow_loss(velocity(model, batch), *batch[:2]).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    plain = gradients()
    model.checkpointing = True
    try:
        recomputed = gradients()
    finally:
        model.checkpointing = False
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)


def test_bfloat16_stays_near_float32(model, batch):
    # Ordinary random weights: those made of waves amplify any rounding.
    torch.manual_seed(0)
    other = OmniGen2Transformer(model.config)
    exact = velocity(other, batch)
    rounded = velocity(other.bfloat16(), batch)
    assert all(v.dtype == torch.bfloat16 for v in rounded)
    for a, b in zip(exact, rounded, strict=True):
        assert ((a - b.float()).norm() / a.norm()).item() < 0.02


def test_rotation_is_exact_far_from_the_origin(model):
    layout = make_layout(model.config, [1000], [[]], [(2, 2)])
    x = wave((1, 1001, 1, 12), 0.41, 1)
    angles = torch.arange(1001, dtype=torch.float64)[:, None, None] * torch.tensor([1, 0.01] * 3)
    angles[-1] = torch.tensor([1000, 10.0, 0, 0, 0, 0])  # the image's one patch: row 0, column 0
    pairs = torch.view_as_complex(x.double().reshape(1, 1001, 1, 6, 2))
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
    torch.testing.assert_close(rotate(x, layout.joint.rotation), turned.float(), atol=1e-6, rtol=0)
    rounded = rotate(x.bfloat16(), layout.joint.rotation)
    exact = rotate(x.bfloat16().float(), layout.joint.rotation)
    assert torch.equal(rounded, exact.bfloat16())


def test_guidance_acts_in_its_share_of_the_steps_alone(model, batch):
    conditions = batch[2]
    given = Conditions(conditions.text[:1], [7], conditions.references[:1])
    negative = Conditions(wave((1, 3, 16), 0.91, 1), [3], conditions.references[:1])
    passes = []
    hook = model.register_forward_hook(
        lambda module, given, _: passes.append(given[4].joint.rotation[0].shape[1])
    )
    try:
        sample(
            model, wave((1, 4, 8, 8), 1.57, 1), given, negative, steps=4, guidance=Guidance(5, 2, 0.25, 0.5)
        )
    finally:
        hook.remove()
    full, none, references = 7 + 16 + 16, 3 + 16, 3 + 16 + 16
    assert passes == [full, *[full, none, references] * 2, full]


def test_without_image_guidance_text_is_weighed_against_no_condition(model, batch):
    conditions = batch[2]
    given = Conditions(conditions.text[:1], [7], conditions.references[:1])
    negative = Conditions(wave((1, 3, 16), 0.91, 1), [3], conditions.references[:1])
    noise = wave((1, 4, 8, 8), 1.57, 1)
    z = sample(model, noise, given, negative, steps=1, guidance=Guidance(text=3, image=1))

    def at_zero(c):
        return model(noise, torch.zeros(1), c.text, c.references, c.layout(model, [(8, 8)]))[0]

    with torch.no_grad():
        v, vu = at_zero(given), at_zero(negative.without_references())
    torch.testing.assert_close(z[0], noise[0] + vu + 3 * (v - vu))


def test_latents_that_are_not_finite_stop_the_sampling(model, batch):
    conditions = batch[2]
    given = Conditions(conditions.text[:1] * float("nan"), [7], conditions.references[:1])
    with pytest.raises(NotFiniteError, match="after step 1"):
        sample(model, wave((1, 4, 8, 8), 1.57, 1), given, given, steps=3)


def test_latents_that_do_not_divide_into_patches_are_rejected(model):
    with pytest.raises(ValueError, match="9x8"):
        make_layout(model.config, [3], [[]], [(9, 8)])


def test_the_published_model_has_its_parameters():
    with torch.device("meta"):
        model = OmniGen2Transformer(OmniGen2Config())
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(3.967e9, abs=1e6)
    assert len(model.blocks) == 38


def test_the_network_needs_torch_alone():
    code = (
        "import sys, mie.networks.omnigen2_flow\n"
        "assert not {'pydantic', 'diffusers', 'transformers', 'cv2'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
