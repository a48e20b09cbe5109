# Everything a newcomer and CI need. `make run` and `make test` set up by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2:135m
PORT ?= 11435
HOME_DIR ?= $(or $(DRIVETRAIN_HOME),.drivetrain)

.PHONY: setup run test test-slow check format bench bench-gateway bench-model docs clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml requirements.lock package-lock.json
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	touch $@

run: setup
	@$(BIN)/python examples/first_run.py --home $(HOME_DIR) --port $(PORT) --model $(MODEL)

test: setup check
	tests/services.sh
	$(BIN)/python -m pytest -q

test-slow: setup
	$(BIN)/python -m pytest -q -m slow

check: setup
	$(BIN)/ruff format --check src tests bench docs examples
	$(BIN)/ruff check src tests bench docs examples
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format src tests bench docs examples
	$(BIN)/ruff check --fix src tests bench docs examples

bench: bench-gateway bench-model

bench-gateway: setup
	$(BIN)/python bench/gateway/run.py

bench-model: setup
	$(BIN)/python bench/model/run.py

docs: setup
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) .drivetrain build dist
