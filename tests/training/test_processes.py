"""Two processes share a batch and end where one does."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")

import torch
from safetensors.torch import load_file

from mie.training.loop import train
from tests import forked_python
from tests.training.tiny import tiny_config

ROOT = Path(__file__).parents[2]
CHANGES: dict = {"model": {"dropout": 0.0}, "data": {"bad_steps": [3]}}
SCRIPT = f"""
from pathlib import Path; import sys
from mie.training.loop import train
from tests.training.tiny import tiny_config
train(tiny_config(**{CHANGES!r}), Path(sys.argv[1]), device="cpu")
"""


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")
def test_two_processes_equal_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    common |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    processes = []
    for rank in ("0", "1"):
        environment = {**os.environ, **common, "RANK": rank, "LOCAL_RANK": rank}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "two")]
        processes.append(forked_python.Started(command, env=environment))
    codes = [process.wait(120) for process in processes]
    assert codes == [0, 0], [process.errors() for process in processes]
    result = train(tiny_config(**CHANGES), tmp_path / "one", device="cpu")
    assert result.complete
    one, two = (
        load_file(tmp_path / name / "checkpoints/step-000012/model.safetensors") for name in ("one", "two")
    )
    assert set(one) == set(two)
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-5)
