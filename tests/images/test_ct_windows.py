"""CT windows against pydicom's own implementation of PS3.3 C.11.2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom import Dataset
from pydicom.data import get_testdata_file
from pydicom.pixels.processing import apply_windowing

from mie.errors import ConfigError, ImageError
from mie.images.dicom import read_dicom
from mie.images.windows import FUNCTIONS, WINDOWS, find_ct_window, holds_air, through_ct_window


def reference(hu: np.ndarray, level: float, width: float, function: str) -> np.ndarray:
    """pydicom works out the output range from BitsStored and the rescale: 8 bits, no rescale, is 0..255."""
    dataset = Dataset()
    dataset.PhotometricInterpretation = "MONOCHROME2"
    dataset.BitsStored, dataset.PixelRepresentation = 8, 0
    dataset.WindowCenter, dataset.WindowWidth = level, width
    dataset.VOILUTFunction = function.upper()
    return np.floor(apply_windowing(hu.astype(np.float64), dataset) + 0.5).astype(np.uint8)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("window", WINDOWS.values(), ids=lambda w: w.name)
def test_equal_to_pydicom_on_every_value(window, function) -> None:
    hu = np.arange(-1100, 3072, dtype=np.float32)[None]
    ours = through_ct_window(hu, window.level, window.width, function)
    assert ours.dtype == np.uint8
    # Half-way cases may fall either way in the last bit of the quotient.
    assert np.abs(ours.astype(int) - reference(hu, window.level, window.width, function)).max() <= 1
    assert (ours != reference(hu, window.level, window.width, function)).mean() < 0.001


@given(
    level=st.floats(-1000, 1000),
    width=st.floats(1.5, 4000),
    function=st.sampled_from(FUNCTIONS),
)
def test_never_falls_and_never_differs_from_pydicom_by_more_than_rounding(level, width, function) -> None:
    hu = np.linspace(-2000, 3000, 501, dtype=np.float32)[None]
    ours = through_ct_window(hu, level, width, function).astype(int)
    assert (np.diff(ours) >= 0).all()
    assert np.abs(ours - reference(hu, level, width, function)).max() <= 1


def test_worked_by_hand() -> None:
    # Brain, linear: 79 steps from 0 to 79 HU; 40 HU is 0.5 HU above the centre c - 0.5.
    values = np.array([[0, 39.5, 40, 79, 300]], np.float32)
    assert through_ct_window(values, 40, 80).tolist() == [[0, 128, 129, 255, 255]]
    # A width of 1 is a threshold: x <= c - 0.5 is black.
    assert through_ct_window(np.array([[39, 39.5, 40]], np.float32), 40, 1).tolist() == [[0, 0, 255]]
    assert through_ct_window(np.array([[40]], np.float32), 40, 80, "sigmoid").tolist() == [[128]]


@pytest.mark.parametrize(("level", "width"), [(40, 0), (40, -5), (np.nan, 80), (40, np.inf)])
def test_windows_that_make_no_sense(level, width) -> None:
    with pytest.raises(ConfigError, match="window does not make sense"):
        through_ct_window(np.zeros((2, 2), np.float32), level, width)


def test_bad_values_and_names() -> None:
    with pytest.raises(ImageError, match="not numbers"):
        through_ct_window(np.array([[np.nan]], np.float32), 40, 80)
    with pytest.raises(ConfigError, match="no CT window") as error:
        find_ct_window("lungs")
    assert error.value.fix == "did you mean 'lung'?"


def test_a_ct_file_brings_its_hounsfield_units_and_an_mr_file_none() -> None:
    ct = read_dicom(Path(str(get_testdata_file("CT_small.dcm"))))
    assert ct.values is not None
    assert holds_air(ct.values)
    assert ct.values.shape == ct.pixels.shape[:2]
    assert ct.values.dtype == np.float32
    assert read_dicom(Path(str(get_testdata_file("MR_small.dcm")))).values is None
