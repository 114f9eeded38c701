# `make demo` answers a question about a clip; `make check` is what CI runs. Only Python 3.11 and make are needed; where there is
# a C compiler, products of weights and attention over pages are compiled, too.

PYTHON ?= python3
# Extra words for pip. Without CUDA, spare yourself the large CUDA wheels:
#   make install PIP_EXTRA="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_EXTRA ?=
MODEL ?= demo
CLIP ?= sample_videos/mover.mp4
QUESTION ?= Describe the video.
URL ?= http://127.0.0.1:8000
# Where the benchmarks' checkpoint is written: a gigabyte.
LOAD ?= bench/load

BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: install fmt lint test check demo serve bench soak up

install: $(STAMP)

$(STAMP): pyproject.toml $(wildcard runner/native/* attention/native/*)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(PIP_EXTRA) -e '.[dev]'
	touch $@

fmt: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Two at a time, whole files each, so that a file's server is started once; one compute thread, for two busy processes make
# two-thread operators crawl.
JOBS ?= 2

test: install
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not soak" -n $(JOBS) --dist loadfile

check: lint test

demo: install
	@mkdir -p out
	$(BIN)/evs ask "$(CLIP)" "$(QUESTION)" --model $(MODEL) --overlay out/overlay.webp
	@echo "Start the server with 'make serve', then open $(URL)"

serve: install
	$(BIN)/evs serve $(MODEL)

bench: install
	$(BIN)/python -m bench.checkpoint $(LOAD)
	$(BIN)/python -m bench.serve $(LOAD)

# Long tests, then ten minutes of three times what the server can do; SOAK_S=60 is a taste of it.
SOAK_S ?= 600

soak: install
	$(BIN)/pytest -m soak
	$(BIN)/python -m bench.soak demo --seconds $(SOAK_S)

up:
	docker compose up --build
