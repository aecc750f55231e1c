SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PY := .venv/bin/python
RESULTS ?= results
# Without a word from the user, the profile follows from whether there is a CUDA device.
HAS_CUDA := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
ifdef PROFILE
WHY := PROFILE=$(PROFILE) was given
else ifeq ($(HAS_CUDA),yes)
PROFILE := paper
WHY := a CUDA device was found; PROFILE=embedded chooses the small pair that is trained on this machine
else
PROFILE := embedded
WHY := no CUDA device was found; PROFILE=paper chooses the models of the paper
endif
ifeq ($(filter $(PROFILE),embedded paper),)
$(error unknown PROFILE '$(PROFILE)'; allowed: embedded, paper)
endif

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F '\t' '{printf "  %-18s %s\n", $$1, $$2}'
	@echo "  variables: PROFILE=embedded|paper (now $(PROFILE): $(WHY)), RESULTS=folder (now $(RESULTS))"

.venv/installed: pyproject.toml constraints.txt
	@echo "installing the pinned dependencies into .venv (a few minutes, once)"
	python3 -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

.PHONY: install
install: .venv/installed ## make .venv with the pinned dependencies

.PHONY: profile
profile:
	@echo "profile: $(PROFILE) ($(WHY))"

.PHONY: reproduce-table1
reproduce-table1: profile .venv/installed ## Table 1: run every missing cell, then write the table (PROFILE=embedded|paper)
	@code=0; $(PY) -m experiments.run experiment=table1 profile=$(PROFILE) results=$(RESULTS) || code=$$?; \
	$(PY) -m analysis.table1 --profile $(PROFILE) --results $(RESULTS); exit $$code

.PHONY: table1
table1: profile .venv/installed ## Table 1 from the cells that exist, running nothing
	@$(PY) -m analysis.table1 --profile $(PROFILE) --results $(RESULTS)

.PHONY: bench
bench: .venv/installed ## our loops against transformers' generate on the same pair, as ratios within one run
	@$(PY) -m experiments.bench

.PHONY: test
test: .venv/installed ## the test suite (CPU, no network)
	@$(PY) -m pytest

.PHONY: lint
lint: .venv/installed ## ruff, mypy on resispec/, and hadolint on the Dockerfile
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@.venv/bin/hadolint Dockerfile

.PHONY: clean
clean: ## remove raw results and caches of tools; .venv, trained pairs and tables stay
	rm -rf $(RESULTS)/raw .pytest_cache .mypy_cache .ruff_cache .hypothesis
