import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from skimage import data

from mie.datasets.write import write_dataset
from mie.perspectives.perception.samples import Perception
from mie.records import Case, Target


@pytest.fixture
def small_dataset(tmp_path):
    """One sample of a photograph of a retina; nobody says that it is de-identified."""
    return _dataset(tmp_path / "dataset", np.ascontiguousarray(data.retina()[400:656, 400:656]))


@pytest.fixture
def lettered_dataset(tmp_path):
    """The same with a name burned in."""
    picture = Image.fromarray(data.retina()[400:656, 400:656])
    ImageDraw.Draw(picture).text((10, 220), "SMITH^JOHN 1961", "white", ImageFont.load_default(20))
    return _dataset(tmp_path / "lettered", np.asarray(picture).copy())


def _dataset(folder, image):
    mask = np.zeros(image.shape[:2], bool)
    mask[60:120, 60:140] = True
    case = Case(
        source="x",
        case_id="a",
        image=image,
        modality="fundus",
        anatomy="eye",
        masks={"disc": mask},
        targets={"disc": Target("disc", "anatomy", False)},
    )
    samples = list(Perception().samples(case, "test", 0))
    write_dataset(iter(samples), folder, name="x", description="", recipe={}, licenses={}, deidentified=False)
    return folder
