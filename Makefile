# make demo   train DPO, PLC-DPO and the KL control on the embedded world; report and table
# make paper  every notebook of the paper's tables and figures, once, on the embedded world
# make test   lint, types, tests, the notebooks on a tiny setting, the app in a real browser
# make app    open the inspector on the runs        make lab   open JupyterLab on the notebooks

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# JupyterLab refuses to run as root, as in containers, unless told that it may.
ALLOW_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
export STREAMLIT_BROWSER_GATHER_USAGE_STATS := false
export HF_HUB_DISABLE_TELEMETRY := 1

.PHONY: demo paper test app lab lint pictures setup setup-dev clean

demo: setup
	@HF_HUB_OFFLINE=1 $(BIN)/python -m plc_core.demo $(if $(FRESH),--fresh)

paper: setup
	@HF_HUB_OFFLINE=1 $(BIN)/python -m plc_core.cli paper

app: setup
	$(BIN)/streamlit run app/inspector.py --server.address 127.0.0.1 -- --runs runs

lab: setup
	PLOTLY_RENDERER=plotly_mimetype $(BIN)/jupyter lab --ip 127.0.0.1 $(ALLOW_ROOT) notebooks

test: setup-dev lint
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	cd app && MYPYPATH=.:.. ../$(BIN)/mypy --config-file ../pyproject.toml -p views -p inspection -p figures -m inspector

# The README's pictures, from the runs of the demo.
pictures: setup-dev demo
	HF_HUB_OFFLINE=1 $(BIN)/python -m plc_core.batch notebooks/objectives.ipynb
	$(BIN)/python -m tests.pictures

setup: .venv/ready

setup-dev: .venv/ready-dev

# torch first and alone: its pinned version is the smallest build that pip offers for it here.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

.venv/ready-dev: .venv/ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
