"""The radar chart: drawn where there are numbers, with gaps where there are none."""

from __future__ import annotations

import cv2

from mie.report.charts import radar_chart


def document(**means):
    """Organ -> EA; None for an organ without a number."""
    groups = [{"group": {}, "metrics": {}}]
    for organ, mean in means.items():
        entry = {"mean": "nan" if mean is None else mean, "n": int(mean is not None), "unscored": 1}
        groups.append({"group": {"organ": organ}, "metrics": {"ea@1": entry}})
    return {"groups": groups}


def test_a_chart_and_no_chart(tmp_path):
    assert radar_chart({"a": document(eye=None)}, tmp_path / "none.png") is None
    assert not (tmp_path / "none.png").exists()
    runs = {"a": document(eye=0.5, skin=0.9, lung=None), "b": document(eye=0.2, skin=0.4, lung=0.7)}
    path = radar_chart(runs, tmp_path / "deep/chart.png")
    assert cv2.imread(str(path)) is not None
    first = path.read_bytes()
    radar_chart(runs, path)
    assert path.read_bytes() == first  # equal numbers, equal bytes
