import re
import subprocess
import sys

import pytest

from mie.errors import ConfigError
from mie.scoring.metrics import MetricError
from mie.scoring.metrics.perceptual.weights import SETS, WeightFile, find_weights, weight_set, weights_folder


def test_the_catalogue_is_whole():
    files = [file for found in SETS.values() for file in found]
    assert len({file.path for file in files}) == len(files)
    for file in files:
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        # Published names carry the first eight digits of the checksum.
        inside = re.search(r"-([0-9a-f]{8})\.pth$", file.path)
        assert inside is None or file.sha256.startswith(inside[1])
        assert not isinstance(file.origin, str) or file.origin.startswith("https://")


def test_where_weights_lie(monkeypatch, tmp_path):
    monkeypatch.setenv("MIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MIE_WEIGHTS", raising=False)
    assert weights_folder() == tmp_path / "cache/weights"
    monkeypatch.setenv("MIE_WEIGHTS", str(tmp_path))
    assert weights_folder() == tmp_path


def test_absent_wrong_and_right(monkeypatch, tmp_path):
    monkeypatch.setenv("MIE_WEIGHTS", str(tmp_path))
    file = WeightFile(
        "abc.pth", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 1, "https://x"
    )
    with pytest.raises(MetricError) as caught:
        find_weights("thing", file)
    assert caught.value.reason == (
        f"no weights for thing; expected abc.pth in {tmp_path}, from `mie weights get thing`; found no file"
    )
    (tmp_path / "abc.pth").write_bytes(b"abd")
    with pytest.raises(MetricError, match="not the published"):
        find_weights("thing", file)
    # At a path that the user names, it is the user's choice; the digest tells.
    assert find_weights("thing", file, tmp_path / "abc.pth").sha256[:4] == "a52d"
    (tmp_path / "abc.pth").write_bytes(b"abc")
    assert find_weights("thing", file).as_dict() == {"file": "abc.pth", "sha256": file.sha256}
    with pytest.raises(MetricError, match="no weights"):
        find_weights("thing", file, tmp_path / "none.pth")


def test_a_near_name_is_suggested():
    with pytest.raises(ConfigError) as caught:
        weight_set("lpips-alexnet")
    assert "lpips-alex" in str(caught.value)


def test_without_pytorch_the_reason_names_the_extra():
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from mie.scoring.metrics import MetricError\n"
        "from mie.scoring.metrics.perceptual import fid, kid\n"
        "try: from mie.scoring.metrics.perceptual import load_lpips\n"
        "except MetricError as error: print(error.reason)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("torch is not installed; expected run `pip install ")
    assert "[models]'" in done.stdout
