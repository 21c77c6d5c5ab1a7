"""The spec of a metric: how its numbers are printed, what it is computed from, who may add one."""

import math
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from mie.core import registry
from mie.errors import ConfigError, MetricError, MieError
from mie.images.overlay import deblend, deblend_any
from mie.scoring.metric import METRICS, Metric, added_metrics, find_metric
from mie.scoring.metrics.dice import is_accurate
from mie.vocabulary import COLOURS
from tests.scoring.benchmarks import slow
from tests.scoring.benchmarks.runs import attempt_at, holistic, structure


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("dice", 0.8312, ".831"),
        ("dice", 1, "1.000"),
        ("dice", -0.5, "−.500"),
        ("psnr", 28.06, "28.1"),
        ("psnr", math.inf, "∞"),
        ("psnr", "inf", "∞"),
        ("psnr", -math.inf, "−∞"),
        ("psnr", 0.04, "0.0"),
        ("dice", math.nan, "–"),
        ("dice", "nan", "–"),
        ("dice", None, "–"),
    ],
)
def test_numbers_look_as_in_a_paper(name, value, shown):
    assert METRICS[name].show(value) == shown


def test_every_name_leads_to_the_metric_of_that_name():
    for name in METRICS.names():
        metric = METRICS[name]
        assert metric.name == name
        assert metric.label
        assert metric.meaning
    assert not METRICS["lpips"].higher_is_better
    assert METRICS["psnr"].title == "PSNR (dB)"
    assert find_metric("their_psnr").title == "their psnr (dB)"
    assert not find_metric("lpips_fg").higher_is_better
    assert find_metric("joy") == Metric("joy", "joy")


def test_functions_agree_with_slow_scripts():
    """Called as a spec is called, by what it needs, against loops that share no code with ours."""
    for sample in (structure("aa", 0), structure("bb", 1, colour="green"), holistic("cc", 2)):
        output = attempt_at(sample, 3)
        several = sample.task == "holistic"
        colours = tuple(COLOURS) if several else (sample.colour,)
        reference = sample.target_image
        region = (
            deblend_any(sample.input, reference) if several else deblend(sample.input, reference, colours[0])
        )
        classes = (
            {c: deblend(sample.input, reference, c) for c in sample.colour.split(",")} if several else None
        )
        facts = {
            "input": sample.input,
            "reference": reference,
            "region": region,
            "colours": colours,
            "classes": classes,
        }
        painted = np.max([slow.deblend(sample.input, output, slow.RGB[c]) for c in colours], axis=0)
        dice = slow.dice(painted, region)
        expected = {
            "dice": dice,
            "p_acc": float(dice > 0.8),
            "b_psnr": slow.paper_psnr(reference, output, region),
            "b_ssim": slow.paper_ssim(reference, output, region),
            "cp": slow.paper_ssim(sample.input, output, region),
            "psnr": slow.paper_psnr(reference, output),
            "ssim": slow.paper_ssim(reference, output),
        }
        if several:
            expected["class_dice"] = np.mean(
                [
                    slow.dice(*(slow.deblend(sample.input, i, slow.RGB[c]) for i in (output, reference)))
                    for c in sample.colour.split(",")
                ]
            )
        for name, value in expected.items():
            assert METRICS[name].compute(output, facts) == pytest.approx(value, abs=1e-9), name
        assert METRICS["dice_guarded"].compute(reference, facts) == pytest.approx(1, abs=0.05)


def test_p_acc_counts_what_lies_above_its_threshold_and_not_what_lies_at_it():
    assert is_accurate(np.nextafter(0.8, 1)) == 1.0
    assert is_accurate(0.8) == 0.0
    assert is_accurate(np.nextafter(0.8, 0)) == 0.0


def test_a_metric_without_what_it_needs_has_a_reason():
    output = structure("aa", 0).input
    with pytest.raises(MetricError, match="needs the target image"):
        METRICS["psnr"].compute(output, {"input": output, "reference": None})
    with pytest.raises(MetricError, match="no function"):
        METRICS["lpips"].compute(output, {"reference": output})
    with pytest.raises(MetricError, match="not a number"):
        Metric("odd", "Odd", function=lambda output: math.nan).compute(output, {})


def test_a_function_that_breaks_is_named():
    broken = Metric("broken", "Broken", function=lambda output: 1 / 0)
    with pytest.raises(MieError, match="metric 'broken' failed") as caught:
        broken.compute(structure("aa", 0).input, {})
    assert not isinstance(caught.value, MetricError)
    assert "ZeroDivisionError" in str(caught.value.found)


def test_a_need_that_no_sample_has():
    with pytest.raises(ConfigError, match="no need of a metric named 'regoin'") as caught:
        Metric("mine", "Mine", needs={"regoin"})
    assert "'region'" in caught.value.fix


def test_a_record_shows_the_same_numbers():
    for name in METRICS.names():
        again = Metric.from_record(name, METRICS[name].record())
        for value in (0.1234, 31.77, math.inf, None):
            assert again.show(value) == METRICS[name].show(value)
        assert (again.higher_is_better, again.scale, again.title) == (
            METRICS[name].higher_is_better,
            METRICS[name].scale,
            METRICS[name].title,
        )


MINE = Metric("mine", "Mine", needs={"region"}, function=lambda output, region: float(output[region].mean()))


def test_other_packages_bring_theirs(monkeypatch):
    point = EntryPoint("mine", "tests.scoring.test_metric:MINE", "mie.metrics")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "mie.metrics" else [])
    assert added_metrics() == ["mine"]
    assert METRICS["mine"].label == "Mine"
    wrong = EntryPoint("mine", "tests.scoring.test_metric:slow", "mie.metrics")
    monkeypatch.setattr(registry, "entry_points", lambda group: [wrong])
    with pytest.raises(ConfigError, match="not a metric"):
        METRICS["mine"]
