"""The same on an S3 server in this process, where `s3fs` and `moto[server]` are installed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import datasets
import mie
from mie.datasets import remote
from tests.editors.conftest import make_dataset

s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
server = pytest.importorskip("moto.server", reason="moto[server] is not installed")


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("MIE_CACHE", str(tmp_path / "here"))
    s3fs.S3FileSystem.clear_instance_cache()
    storage = s3fs.S3FileSystem(use_listings_cache=False)
    storage.mkdir("bucket")
    yield storage
    running.stop()


def test_a_dataset_and_a_run_on_s3(bucket, tmp_path, monkeypatch):
    made = mie.Dataset(make_dataset(tmp_path / "made", 8, size=64))
    assert not remote.leaves_this_machine("s3://bucket/ds")
    with mie.work_folder("s3://bucket/ds") as folder:
        made.folder.rename(folder)
    words = [sys.executable, "-m", "mie", "run", "s3://bucket/ds", "-e", "otsu", "-o", "s3://bucket/run"]
    subprocess.run(words, check=True, capture_output=True)
    assert json.loads(bucket.cat_file("bucket/run/run.json"))["dataset"]["path"] == "s3://bucket/ds"
    monkeypatch.setenv("MIE_CACHE", str(tmp_path / "there"))
    run = mie.Run.open("s3://bucket/run")
    assert run.complete
    assert run.dataset().digest == made.digest
    files = {"train": "s3://bucket/ds/data/train-*.parquet"}
    rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    assert [row["id"] for row in rows] == run.dataset().table(["id"], "train")["id"]
