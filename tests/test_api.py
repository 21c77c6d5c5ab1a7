import subprocess
import sys

import pytest

import mie


@pytest.mark.parametrize("name", [n for n in mie.__all__ if n != "__version__"])
def test_public_names_load(name):
    assert callable(getattr(mie, name))


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="nonsense"):
        mie.nonsense  # noqa: B018


def test_importing_mie_imports_nothing_heavy():
    script = "import sys, mie; print('numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
