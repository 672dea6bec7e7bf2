# The developer's commands; `make` or `make help` lists them. Each does all the set-up it needs, and nothing twice.
#   PYTHON          the Python to start from (default python3)
#   TORCH           the torch to install into the environment; default: the one PYTHON has, else the pinned one
#   VENV            where the environment is made (default .venv)
#   FLASHTRI_ARCHS  the CUDA architectures to compile, as "80 90"; default: this machine's, or 90 where it has no GPU;
#                   for wheel: all
#   TEST_PYTHON     for gpu-test and bench: a Python that has flashtri and pytest installed; nothing is set up or built then
PYTHON ?= python3
VENV ?= .venv
TORCH ?=
BIN := $(VENV)/bin
TEST_PYTHON ?=
RUN_PYTHON := $(or $(TEST_PYTHON),$(BIN)/python)
export FLASHTRI_ARCHS FLASHTRI_TORCH CXX

.PHONY: help setup build demo test gpu-test bench lint format wheel sdist clean distclean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make the environment: torch and the pinned tools
	@$(PYTHON) tools/setup_env.py --venv $(VENV) --torch "$(TORCH)"

build: setup ## compile the kernels and the op, install the wheel into the environment
	@$(BIN)/python tools/install.py

demo: build ## embed sentences with a real model through the op, as TorchScript and torch.export
	@$(BIN)/python examples/minilm/run.py

test: build ## everything CI runs
	@$(BIN)/python tools/run_tests.py

gpu-test: $(if $(TEST_PYTHON),,build) ## the problem table on a CUDA device, through the cubins
	@$(RUN_PYTHON) tools/run_tests.py gpu

bench: $(if $(TEST_PYTHON),,build) ## measure; CSV files go to build/benchmarks
	@$(RUN_PYTHON) -m benchmarks

lint: setup ## ruff and clang-format, changing nothing
	@$(BIN)/python tools/run_tests.py lint

format: setup ## ruff and clang-format, in place
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	@find csrc examples -name '*.cpp' -o -name '*.h' | xargs $(BIN)/clang-format -i

wheel: setup ## build dist/*.whl for the environment's torch (FLASHTRI_TORCH: for several)
	@$(BIN)/python -m pip wheel --no-build-isolation --no-deps -w dist .

sdist: setup ## build dist/*.tar.gz
	@$(BIN)/python -m build --no-isolation --sdist

clean: ## remove what was built
	rm -rf build dist python/*.egg-info .pytest_cache .ruff_cache
	find python -name '*.so' -delete

distclean: clean ## also remove the environment
	rm -rf $(VENV)
