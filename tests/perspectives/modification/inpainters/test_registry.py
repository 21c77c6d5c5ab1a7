"""Inpainters by name."""

import subprocess
import sys

import pytest

from mie.errors import ConfigError
from mie.images.families import FAMILIES
from mie.perspectives.modification.inpainters import INPAINTERS, make_inpainter


def test_names():
    names = ["compact", "exemplar", "flow", "flux-fill", "harmonic", "navier-stokes", "telea"]
    assert INPAINTERS.names() == names


@pytest.mark.parametrize("name", ["telea", "navier-stokes", "exemplar"])
@pytest.mark.parametrize("family", FAMILIES)
def test_classical_ones_open_for_every_family(name, family):
    assert make_inpainter(name, family=family).name == name


@pytest.mark.parametrize(
    ("spec", "family", "words"),
    [
        ("telia", "ct", ["no inpainter named 'telia'", "did you mean 'telea'?"]),
        ("telea", "CAT", ["no modality family named 'CAT'", "did you mean 'ct'?"]),
        ("telea:x", "ct", ["takes no argument", "x"]),
        ("exemplar,steps=3", "ct", ["no options", "steps"]),
        (":x", "ct", ["cannot read this inpainter"]),
    ],
)
def test_wrong_specs_say_what_is_wrong(spec, family, words):
    with pytest.raises(ConfigError) as caught:
        make_inpainter(spec, family=family)
    assert all(word in str(caught.value) for word in words)


def test_inpainters_import_without_torch():
    code = "import sys, mie.perspectives.modification.inpainters.exemplar; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
