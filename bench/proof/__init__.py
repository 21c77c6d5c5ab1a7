"""Proof that a change of the code changes no result: record before, record after, compare.

    python -m bench.proof record before.json
    python -m bench.proof record after.json
    python -m bench.proof compare before.json after.json

Everything is driven by `python -m mie` and read from files on disk, so the same script runs on both sides of
a change, whatever moved inside the package. Times, versions, places on disk and host names are left out. What
is recorded is deterministic: a second recording with the same code has no differences. `record` adds to a
file that exists, so long parts can be recorded later with `--parts`. Record both sides in one Python
environment on one machine: libraries and processors differ in the last bit.

With `--work FOLDER` the datasets, runs, scores and trainings in the folder are kept, and reused while the
code of mie and of this proof, the libraries and the files themselves stay the same. Use one folder for each
side of a change.

The part `examples` needs the public data sets: set MIE_DATA as the recipes in `examples/` say.
"""
