"""`mie doctor`: what this installation can do."""

from __future__ import annotations

import typer


def doctor(
    json: bool = typer.Option(False, "--json", help="Print the findings as one JSON document."),
) -> None:
    """Say what is installed, which extras are missing, and which sample data is cached.

    Example: mie doctor
    """
    import importlib.metadata
    import importlib.util
    import platform

    import mie
    from mie.cli._show import print_json, table
    from mie.core.environment import install_hint
    from mie.core.files import cache_folder
    from mie.datasets.engine import cores

    extras = {
        "models": "torch",
        "onnx": "onnxruntime",
        "faces": "skimage",
        "review": "fastapi",
        "ray": "ray",
        "storage": "fsspec",
        "marks": "c2pa",
    }
    found = {
        "mie": mie.__version__,
        "python": platform.python_version(),
        "cores": cores(),
        **{
            n: importlib.metadata.version(n)
            for n in ("numpy", "opencv-python-headless", "pyarrow", "pydicom")
        },
        **{
            f"extra {name}": "installed"
            if importlib.util.find_spec(module)
            else f"missing: {install_hint(name)}"
            for name, module in extras.items()
        },
        "sample cache": str(cache_folder()),
    }
    if json:
        print_json(found)
    else:
        table("mie doctor", ("what", "found"), list(found.items()))
