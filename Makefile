# Everything from a bare checkout: `make demo` trains and writes, `make test` checks.
# PYTHON chooses the interpreter (3.11 or later); the environment is kept in .venv.

PYTHON ?= python3
VENV := .venv
GPU_VENV := .venv-gpu
TRITON ?= triton==3.6.0
BIN := $(VENV)/bin
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	$(BIN)/python -m pip install --quiet
WORKERS ?= auto
DEMO_MINUTES ?= 2.5
MINUTES ?= 10
SEED ?= 1
DEMO_PROMPT ?= class Stack:

.DEFAULT_GOAL := help
.PHONY: help install install-all demo test lint format docs benchmark sanitize fuzz browser gpu-check gpu-check-few gpu-gate gpu-tests gpu-day gpu-science clean

help:
	@echo 'make demo     train a small hybrid for $(DEMO_MINUTES) minutes on the text of the standard library, then write with it'
	@echo 'make test     ruff, mypy and the tests'
	@echo 'make lint     ruff and mypy alone'
	@echo 'make format   let ruff rewrite what it can'
	@echo 'make docs     the documentation as a site, in build/docs; it runs the code of every page and fails where one is wrong'
	@echo 'make install  the environment in $(VENV), with what the tests need'
	@echo 'make benchmark  the bars: our kernels and models beside those of others, which it installs (llama.cpp compiles for minutes)'
	@echo 'make sanitize   the tests of the C kernels over a library built with sanitizers'
	@echo 'make fuzz MINUTES=30 SEED=1   random cases against slow, obvious answers; exit code 1 if one is wrong'
	@echo 'make browser  the page of statewise explore in Chromium, which it installs where apt-get can; PICTURES=docs/pictures draws those of the docs'
	@echo 'make gpu-check  the Triton kernels without a GPU: compiled for eight cards, and run in an interpreter'
	@echo 'make gpu-check-few  the same in minutes: one configuration of each on two cards, and the tests that are not long'
	@echo 'make gpu-day  on a machine with a GPU, in ten minutes: tests, laws and times of its kernels and models; the results in build/gpu-day'
	@echo 'make gpu-science DATA=data  ten minutes of the trainings that need a GPU; call it again and it goes on'
	@echo 'make clean    remove the environment and every cache (runs/ stays)'

# Each stamp lies inside the environment, so that removing .venv removes it too. A second call installs nothing
# unless the metadata or the constraints have changed.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("statewise needs Python 3.11 or later, and $(PYTHON) is " + sys.version.split()[0] + "; say which with: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $(VENV)/.installed $@

install: $(VENV)/.installed-dev

# With what make browser and make docs need too, looked up and installed once: .ci/run begins with it
install-all: $(VENV)/.installed-all

$(VENV)/.installed-all: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev,browser,docs]'
	@touch $(VENV)/.installed $(VENV)/.installed-dev $(VENV)/.installed-browser $(VENV)/.installed-docs $@

# A run folder is never overwritten: a second demo goes to runs/demo-2, and so on.
demo: $(VENV)/.installed
	@run=runs/demo; n=2; while [ -e "$$run" ]; do run=runs/demo-$$n; n=$$((n + 1)); done; set -e; \
	echo '== train' && $(BIN)/statewise train --preset demo --minutes $(DEMO_MINUTES) --out "$$run"; \
	echo '== evaluate on the test split' && $(BIN)/statewise evaluate "$$run" --no-json; \
	echo '== a sample' && $(BIN)/statewise generate "$$run" --prompt '$(DEMO_PROMPT)' --echo --max-new-tokens 400 --temperature 0.7 --seed 1; \
	echo "== the run is in $$run; once more from its checkpoint" && \
	$(BIN)/statewise generate "$$run" --prompt 'import ' --echo --max-new-tokens 200 --temperature 0.7 --seed 2

# Neighbours stay with one worker, which makes once what the tests of a file share.
# EVERY=3: of each test's cases one in three, as continuous integration runs them
EVERY ?= 1
test: lint
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal --durations 15 --every $(EVERY) tests statewise

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[docs]'
	@touch $(VENV)/.installed $@

# What pages print and draw is kept in build/docs-cache: a second call runs the pages that have changed
docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -q -W --keep-going -n -j auto -d build/docs-cache/doctrees docs build/docs
	@echo 'the site is in build/docs: open build/docs/index.html'

$(VENV)/.installed-bench: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[bench,llama,plot]'
	@touch $(VENV)/.installed $@

benchmark: $(VENV)/.installed-bench
	$(BIN)/statewise benchmark bars --no-json

sanitize: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --slow tests/native/test_sanitizers.py

fuzz: $(VENV)/.installed-dev
	PYTHONPATH=tests $(BIN)/python -m fuzz --minutes $(MINUTES) --seed $(SEED) --sanitize auto

$(VENV)/.installed-browser: pyproject.toml constraints.txt $(VENV)/.installed-dev
	$(PIP) -e '.[browser]'
	@touch $(VENV)/.installed $(VENV)/.installed-dev $@

# Debian's Chromium, driven by Playwright; Playwright's own browsers are not downloaded
PICTURES ?=
browser: $(VENV)/.installed-browser
	@command -v chromium > /dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium > /dev/null; } \
		|| { echo 'make browser needs Chromium as chromium on the PATH, and apt-get could not install it'; exit 1; }
	STATEWISE_PICTURES=$(PICTURES) $(BIN)/python -m pytest --browser --durations 5 tests/explore/test_browser_*.py

# Triton is 700 MB, and each PyTorch for CUDA wants its own: so it has an environment apart, and no pin in constraints.txt.
# All else comes from the environment of the tests, by a file of paths. What was compiled stays in build/gpu-cache.
$(GPU_VENV)/.installed: $(VENV)/.installed-dev
	$(BIN)/python -m venv --without-pip $(GPU_VENV)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip --python $(GPU_VENV)/bin/python install --quiet --no-deps '$(TRITON)'
	$(BIN)/python -c 'from sysconfig import get_path as path; print(path("purelib"), path("platlib"), sep="\n")' \
		> "$$($(GPU_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/environment-of-the-tests.pth"
	@touch $@

GATE = PYTHONPATH=. TRITON_CACHE_DIR=build/gpu-cache $(GPU_VENV)/bin/python -m statewise.kernels.gpu.gate
GATED := experiments/results/gpu-gate.json
INTERPRETED = PYTHONPATH=. TRITON_CACHE_DIR=build/gpu-cache TRITON_INTERPRET=1 $(GPU_VENV)/bin/python -m pytest -n $(WORKERS) \
	--maxprocesses 8 --dist worksteal --durations 5 -W ignore::DeprecationWarning tests/kernels/test_triton_*.py

gpu-check: gpu-gate gpu-tests

gpu-gate: $(GPU_VENV)/.installed
	mkdir -p build
	$(GATE) --json build/gpu-gate.json --record $(GATED)

gpu-tests: $(GPU_VENV)/.installed
	$(INTERPRETED)

# Minutes instead of an hour: what continuous integration runs
gpu-check-few: $(GPU_VENV)/.installed
	$(GATE) --few $(GATED)
	$(INTERPRETED) -m 'not long_interpreted'

# They install nothing: PYTHON is one that has PyTorch for the card
DATA ?=
gpu-day:
	PYTHONPATH=. $(PYTHON) -m statewise.benchmark.gpu --out build/gpu-day

gpu-science:
	PYTHONPATH=. $(PYTHON) -m statewise.benchmark.gpu --science --out build/gpu-science $(if $(DATA),--data-dir $(DATA))

clean:
	rm -rf $(VENV) $(GPU_VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find statewise tests -name __pycache__ -type d -prune -exec rm -rf {} +
