"""The FID network against its description, written once more as plain functions of a table of tensors."""
# ruff: noqa: E402 - what needs PyTorch is imported after the question whether it is there

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="perceptual metrics need the extra `models`")
import torch.nn.functional as F

from mie.scoring.metrics import MetricError
from mie.scoring.metrics.perceptual import Inception, load_inception
from mie.scoring.metrics.perceptual.inception import InceptionV3
from tests.conftest import crop


@pytest.fixture(scope="module")
def state():
    torch.manual_seed(5)
    network = InceptionV3()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(0, 0.1)
    return network.state_dict()


@pytest.fixture(scope="module")
def inception(state):
    return Inception({**state, "fc.weight": torch.zeros(1008, 2048)}, device="cpu")


def by_description(state, x):
    """Szegedy et al. (2016) with the three differences of the FID graph."""

    def conv(name, x, stride=1, padding=0):
        weight = state[f"{name}.conv.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=padding)
        mean, var, gamma, beta = (
            state[f"{name}.bn.{part}"].view(1, -1, 1, 1)
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return torch.relu((x - mean) / torch.sqrt(var + 0.001) * gamma + beta)

    def mean_inside(x):
        ones = torch.ones_like(x[:, :1])
        box = torch.ones(1, 1, 3, 3)
        sums = F.conv2d(x, box.repeat(x.shape[1], 1, 1, 1), padding=1, groups=x.shape[1])
        return sums / F.conv2d(ones, box, padding=1)

    def largest(x):
        return (
            F.unfold(F.pad(x, (1, 1, 1, 1), value=-1e9), 3)
            .view(x.shape[0], x.shape[1], 9, *x.shape[2:])
            .amax(2)
        )

    def five(n, x):
        one = conv(f"{n}.branch1x1", x)
        fives = conv(f"{n}.branch5x5_2", conv(f"{n}.branch5x5_1", x), padding=2)
        threes = conv(f"{n}.branch3x3dbl_2", conv(f"{n}.branch3x3dbl_1", x), padding=1)
        threes = conv(f"{n}.branch3x3dbl_3", threes, padding=1)
        return torch.cat([one, fives, threes, conv(f"{n}.branch_pool", mean_inside(x))], 1)

    def six(n, x):
        wide, tall = (0, 3), (3, 0)
        sevens = conv(f"{n}.branch7x7_2", conv(f"{n}.branch7x7_1", x), padding=wide)
        sevens = conv(f"{n}.branch7x7_3", sevens, padding=tall)
        double = conv(f"{n}.branch7x7dbl_1", x)
        for at, padding in ((2, tall), (3, wide), (4, tall), (5, wide)):
            double = conv(f"{n}.branch7x7dbl_{at}", double, padding=padding)
        pooled = conv(f"{n}.branch_pool", mean_inside(x))
        return torch.cat([conv(f"{n}.branch1x1", x), sevens, double, pooled], 1)

    def seven(n, x, pool):
        wide, tall = (0, 1), (1, 0)
        threes = conv(f"{n}.branch3x3_1", x)
        double = conv(f"{n}.branch3x3dbl_2", conv(f"{n}.branch3x3dbl_1", x), padding=1)
        parts = [conv(f"{n}.branch1x1", x)]
        parts += [conv(f"{n}.branch3x3_2{k}", threes, padding=p) for k, p in (("a", wide), ("b", tall))]
        parts += [conv(f"{n}.branch3x3dbl_3{k}", double, padding=p) for k, p in (("a", wide), ("b", tall))]
        return torch.cat([*parts, conv(f"{n}.branch_pool", pool(x))], 1)

    x = conv("Conv2d_2a_3x3", conv("Conv2d_1a_3x3", x, stride=2))
    x = F.max_pool2d(conv("Conv2d_2b_3x3", x, padding=1), 3, 2)
    x = F.max_pool2d(conv("Conv2d_4a_3x3", conv("Conv2d_3b_1x1", x)), 3, 2)
    for block in "bcd":
        x = five(f"Mixed_5{block}", x)
    n = "Mixed_6a"
    double = conv(f"{n}.branch3x3dbl_2", conv(f"{n}.branch3x3dbl_1", x), padding=1)
    x = torch.cat(
        [conv(f"{n}.branch3x3", x, 2), conv(f"{n}.branch3x3dbl_3", double, 2), F.max_pool2d(x, 3, 2)], 1
    )
    for block in "bcde":
        x = six(f"Mixed_6{block}", x)
    n = "Mixed_7a"
    threes = conv(f"{n}.branch3x3_2", conv(f"{n}.branch3x3_1", x), 2)
    sevens = conv(f"{n}.branch7x7x3_2", conv(f"{n}.branch7x7x3_1", x), padding=(0, 3))
    sevens = conv(f"{n}.branch7x7x3_4", conv(f"{n}.branch7x7x3_3", sevens, padding=(3, 0)), 2)
    x = torch.cat([threes, sevens, F.max_pool2d(x, 3, 2)], 1)
    x = seven("Mixed_7c", seven("Mixed_7b", x, mean_inside), largest)
    return x.mean((2, 3))


def bilinear(image, side):
    """Half-pixel centres, no antialiasing, on 0 to 1, in float64."""
    height, width = image.shape[:2]
    values = image.astype(np.float64) / 255

    def place(count):
        at = np.clip((np.arange(side) + 0.5) * count / side - 0.5, 0, count - 1)
        low = np.floor(at).astype(int)
        return low, np.minimum(low + 1, count - 1), at - low

    y0, y1, dy = place(height)
    x0, x1, dx = place(width)
    rows = values[y0] * (1 - dy[:, None, None]) + values[y1] * dy[:, None, None]
    return rows[:, x0] * (1 - dx[None, :, None]) + rows[:, x1] * dx[None, :, None]


def test_features_follow_the_description(state, inception):
    images = [crop(0, 350, 200), crop(1, 96, 120)]
    found = np.concatenate(list(inception.features(images)))
    with torch.inference_mode():
        for row, image in zip(found, images, strict=True):
            square = torch.from_numpy(2 * bilinear(image, 299) - 1).float().permute(2, 0, 1)[None]
            expected = by_description(state, square)[0].numpy()
            np.testing.assert_allclose(row, expected, atol=2e-5)
            assert expected.std() > 1e-3


def test_the_published_number_of_parameters():
    counted = sum(p.numel() for p in InceptionV3().parameters())
    assert counted == 23_834_568 - 2_049_000  # Inception v3 without side branch, less its 1000 classes


def test_batches_change_nothing(inception):
    images = [crop(n, 64, 64) for n in range(3)]
    one = np.concatenate(list(inception.features(images, batch=1)))
    two = list(inception.features(images, batch=2))
    assert [len(batch) for batch in two] == [2, 1]
    np.testing.assert_allclose(np.concatenate(two), one, atol=1e-5)


def test_files(state, tmp_path, monkeypatch):
    torch.save(state, tmp_path / "inception.pth")
    loaded = load_inception(tmp_path / "inception.pth", device="cpu")
    assert loaded.about()["weights"][0]["file"] == "inception.pth"
    old = {name: tensor for name, tensor in state.items() if "num_batches_tracked" not in name}
    Inception(old)  # files of older PyTorch versions lack the counter
    with pytest.raises(MetricError, match="another network"):
        Inception({name: tensor for name, tensor in state.items() if "Mixed_7c" not in name})
    monkeypatch.setenv("MIE_WEIGHTS", str(tmp_path / "none"))
    with pytest.raises(MetricError) as caught:
        load_inception()
    assert "mie weights get fid" in caught.value.reason
