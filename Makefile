# Everything from a bare checkout: `make demo` trains and writes, `make test` checks.
# PYTHON chooses the interpreter (3.11 or later); the environment is kept in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	$(BIN)/python -m pip install --quiet
WORKERS ?= auto
DEMO_MINUTES ?= 2.5
MINUTES ?= 10
SEED ?= 1
DEMO_PROMPT ?= class Stack:

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format benchmark sanitize fuzz clean

help:
	@echo 'make demo     train a small hybrid for $(DEMO_MINUTES) minutes on the text of the standard library, then write with it'
	@echo 'make test     ruff, mypy and the tests'
	@echo 'make lint     ruff and mypy alone'
	@echo 'make format   let ruff rewrite what it can'
	@echo 'make install  the environment in $(VENV), with what the tests need'
	@echo 'make benchmark  the bars: our kernels and models beside those of others, which it installs (llama.cpp compiles for minutes)'
	@echo 'make sanitize   the tests of the C kernels over a library built with sanitizers'
	@echo 'make fuzz MINUTES=30 SEED=1   random cases against slow, obvious answers; exit code 1 if one is wrong'
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

# A run folder is never overwritten: a second demo goes to runs/demo-2, and so on.
demo: $(VENV)/.installed
	@run=runs/demo; n=2; while [ -e "$$run" ]; do run=runs/demo-$$n; n=$$((n + 1)); done; set -e; \
	echo '== train' && $(BIN)/statewise train --preset demo --minutes $(DEMO_MINUTES) --out "$$run"; \
	echo '== evaluate on the test split' && $(BIN)/statewise evaluate "$$run" --no-json; \
	echo '== a sample' && $(BIN)/statewise generate "$$run" --prompt '$(DEMO_PROMPT)' --echo --max-new-tokens 400 --temperature 0.7 --seed 1; \
	echo "== the run is in $$run; once more from its checkpoint" && \
	$(BIN)/statewise generate "$$run" --prompt 'import ' --echo --max-new-tokens 200 --temperature 0.7 --seed 2

test: lint
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --durations 15 tests statewise

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed-bench: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[bench,llama,plot]'
	@touch $(VENV)/.installed $@

benchmark: $(VENV)/.installed-bench
	$(BIN)/statewise benchmark bars --no-json

sanitize: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --slow tests/native/test_sanitizers.py

fuzz: $(VENV)/.installed-dev
	PYTHONPATH=tests $(BIN)/python -m fuzz --minutes $(MINUTES) --seed $(SEED) --sanitize auto

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find statewise tests -name __pycache__ -type d -prune -exec rm -rf {} +
