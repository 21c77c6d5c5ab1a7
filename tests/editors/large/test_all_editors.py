"""Every large editor on one dataset: local pipelines, OmniGen2 and the four providers, in one report."""

from __future__ import annotations

import pytest

import mie
from mie.editors.diffusers.dialects import DIALECTS
from tests.editors.large.test_diffusers import quick
from tests.editors.providers import KEY, KEYS, providers


def test_all_of_them_run_are_scored_and_reported(tiny, small, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="reports need the extra `report`")
    from tests.editors.large.tiny_omnigen2 import write_omnigen2

    specs = {name: quick(tiny(name)) for name in DIALECTS}
    specs["omnigen2"] = f"omnigen2:{write_omnigen2(tmp_path / 'omnigen2')},steps=1,device=cpu"
    runs = []
    with providers() as server:
        for name, variable in KEYS.items():
            monkeypatch.setenv(variable, KEY)
            specs[name] = server.spec(name)
        for name, spec in specs.items():
            run = mie.run(small, spec, tmp_path / "runs" / name, limit=1)
            assert run.info["counts"]["done"] == 1, (name, run.edits())
            results = mie.score(run, "miedb", workers=1)
            assert results["b_psnr"].n == 1, name
            runs.append(run)
        assert server.wrong == []
    page = mie.report(runs, tmp_path / "report").read_text()
    for name in specs:
        assert name in page
