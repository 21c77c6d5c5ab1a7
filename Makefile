# Two commands matter: `make demo` and `make test`. Each sets up all it needs, and works a second time.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
OUT    ?= out

.PHONY: help demo test coverage lint format bench docs clean kills fuzz lock audit sbom wheel wheel-check
help:
	@echo "make demo   build, verify, edit, score and report on real sample images"
	@echo "make test   the whole test suite"
	@echo "make coverage   the same, with the share of lines that it runs"
	@echo "make lint   ruff, mypy, import contracts"
	@echo "make bench  speed and memory, as ratios"
	@echo "make docs   the documentation as HTML in site/"
	@echo "make kills  1,000 kills and disk faults over all long commands"
	@echo "make fuzz   100,000 damaged files of all formats"
	@echo "make lock   the versions and checksums of all dependencies, in locks/"
	@echo "make wheel-check   build the wheel twice and compare the bytes"

# Quiet on purpose: the first useful line should be ours. Errors of pip are shown.
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info[:2] <= (3, 13) else "mie needs Python 3.11 to 3.13; run make PYTHON=python3.12")'
	@echo "[1/3] making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "[2/3] installing mie and torch (about 2 GB, a few minutes)"
	@$(PIP) -e '.[models,onnx,review,ray,marks,faces]'
	@echo "[3/3] installing what tests and documentation need"
	@$(PIP) -e '.[dev]'
	@# Without its dependencies: they include torchvision, which does not load beside a CPU build of torch.
	@$(PIP) --no-deps dynamic-network-architectures
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/mie demo -o $(OUT)/demo

# Three processes on two cores, one thread each: many tests wait for a server, a browser or a kill. Tests that
# share a fixture run in one of them, the slow ones first (tests/conftest.py).
SPREAD := --dist loadscope --no-loadscope-reorder
# Bytecode is kept even where the environment forbids it: each of many processes would compile all files again.
TESTING := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest
test: $(VENV)/.installed
	$(TESTING) -n 3 $(SPREAD) -m "not nightly"

# Apart, because tracing every line makes pure Python take up to three times as long.
coverage: $(VENV)/.installed
	$(TESTING) -n 2 $(SPREAD) --cov --cov-report=term:skip-covered --cov-fail-under=85

lint: $(VENV)/.installed
	$(BIN)/ruff check src tests bench examples
	$(BIN)/ruff format --check src tests bench examples
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff check --fix src tests bench examples
	$(BIN)/ruff format src tests bench examples

bench: $(VENV)/.installed
	$(BIN)/python bench/png.py
	$(BIN)/python bench/store.py
	$(BIN)/python bench/build.py
	$(BIN)/python bench/questions.py --images 500
	$(BIN)/python bench/memory.py
	$(BIN)/python bench/metrics.py
	$(BIN)/python bench/score.py
	$(BIN)/python bench/judge.py
	$(BIN)/python bench/physics_mri.py
	$(BIN)/python bench/physics_ct.py
	$(BIN)/python bench/review.py
	$(BIN)/python bench/compact.py
	$(BIN)/python -m bench.large_editors --edits 1000
	$(BIN)/python bench/omnigen2.py
	$(BIN)/python bench/intervals.py --trials 500
	$(BIN)/python -m bench.words
	$(BIN)/python -m bench.inpainting --quick

docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

kills: $(VENV)/.installed
	$(BIN)/python -m bench.kills --kills 1000

# CI gives it a minute: make fuzz FUZZ="--cases 1000000 --seconds 60"
FUZZ ?= --cases 100000
SEED ?= 1
fuzz: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(FUZZ) --seed $(SEED)

# What a release is made of. locks/base.txt has no torch; locks/models.txt has the torch of the package index.
EXTRAS := --extra review --extra review-postgres --extra ray --extra storage --extra marks --extra faces
LOCK   := $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes -c constraints.txt \
	--no-header --no-emit-index-url --no-annotate --quiet
lock: $(VENV)/.installed
	@$(PIP) uv
	$(LOCK) $(EXTRAS) -o locks/base.txt
	$(LOCK) $(EXTRAS) --extra models --extra onnx -o locks/models.txt

audit: $(VENV)/.installed
	@$(PIP) pip-audit
	$(BIN)/pip-audit --disable-pip --require-hashes --strict -r locks/base.txt
	$(BIN)/pip-audit --disable-pip --require-hashes --strict -r locks/models.txt

sbom: $(VENV)/.installed
	@$(PIP) cyclonedx-bom
	@mkdir -p dist
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible -o dist/sbom.json locks/models.txt

# The time in the wheel is that of the commit, so that everybody builds the same bytes.
wheel: $(VENV)/.installed
	@$(PIP) build hatchling
	@mkdir -p dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --wheel --outdir dist
	cd src/mie/weights && sha256sum *.safetensors > $(CURDIR)/dist/weights.sha256

wheel-check: $(VENV)/.installed
	@$(PIP) build hatchling
	PYTHON=$(BIN)/python sh .ci/wheel-check

clean:
	rm -rf $(VENV) $(OUT) dist site .coverage* .pytest_cache .mypy_cache .ruff_cache
