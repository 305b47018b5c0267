# Everything installs itself into .venv on first use, and again only when pyproject.toml or constraints.txt changed.
#
#   make report                    PYTHON=python3.12 chooses the interpreter of the environment (3.11 or newer)
#   make report ARGS="--jobs 1"    ARGS go to the command behind the target
#   make report VENV=              no environment: the packages that PYTHON has already are used as they are

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
ARGS ?=
FILE ?=
EXTRAS ?= test,lint,browser,cluster,slides

# In a container one often is root, and JupyterLab wants to be told that this is meant.
LAB_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

ifeq ($(strip $(VENV)),)
RUN := $(PYTHON)
READY :=
else
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
endif

.DEFAULT_GOAL := help
.PHONY: help report test lab slides explain doctor lint clean clean-venv

help: ## say what there is
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## /\1|/' | \
		while IFS='|' read -r target text; do printf '  make %-11s %s\n' "$$target" "$$text"; done

report: $(READY) ## execute all notebooks on this machine and write report/index.html
	$(RUN) -m helpers.report $(ARGS)

test: $(READY) ## run all tests, and every committed notebook against its stored outputs
	$(RUN) -m pytest -n $(JOBS) --dist loadscope $(ARGS)

lab: $(READY) ## open JupyterLab on the first notebook
	$(RUN) -m jupyterlab notebooks/00_start_here.ipynb $(LAB_ROOT) $(ARGS)

slides: $(READY) ## turn the notebooks into slides that open without a network: slides/index.html
	$(RUN) -m helpers.report slides $(ARGS)

explain: $(READY) ## explain a traceback that is pasted (then Ctrl-D), or a file: make explain FILE=log.txt
	@$(RUN) -m helpers.explain $(FILE) $(ARGS)

doctor: $(READY) ## look at versions, GPUs and drivers, and say what is wrong and how to mend it
	@$(RUN) -m helpers.doctor

lint: $(READY) ## ruff on code and notebooks, mypy on the packages
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

clean: ## remove the report and all caches
	rm -rf report slides build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name .git -prune -o -path './.venv' -prune -o \
		\( -name __pycache__ -o -name .ipynb_checkpoints \) -print0 | xargs -0 rm -rf

clean-venv: ## remove the environment that make installed
	@if [ -z "$(strip $(VENV))" ]; then echo "VENV is empty: there is no environment to remove"; \
	elif [ -e "$(VENV)" ] && [ ! -e "$(VENV)/pyvenv.cfg" ]; then echo "$(VENV) is no environment" >&2; exit 1; \
	else rm -rf "$(VENV)"; fi

# pip comes first: an old one does not know all that is used here. The pin of torch keeps pip from fetching CUDA
# libraries of several gigabytes where a CPU build is on offer; see constraints.txt.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "device-guards needs Python 3.11 or newer, and PYTHON=$(PYTHON) is not that: try make PYTHON=python3.11" >&2; exit 1; }
	@echo "Installing into $(VENV): once, some minutes"
	@[ -x $(VENV)/bin/pip ] || $(PYTHON) -m venv $(VENV) || { \
		rm -rf $(VENV); echo "$(PYTHON) cannot make environments: install its venv module (python3-venv on Debian)" >&2; exit 1; }
	@$(RUN) -m pip install --quiet --disable-pip-version-check --upgrade --constraint constraints.txt pip
	@$(RUN) -m pip install --quiet --constraint constraints.txt --build-constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@
