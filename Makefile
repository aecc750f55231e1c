SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PY := .venv/bin/python
ARTEFACTS := table1 table2 table4 table5 figure1 frontier
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
	@$(foreach stem,$(ARTEFACTS),printf '  %-18s %s\n' reproduce-$(stem) 'run every missing cell of $(stem), then write it' \
	  $(stem) 'write $(stem) from the cells that exist, running nothing';)
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

# One stem per artefact: reproduce-STEM runs every missing cell of conf/experiment/STEM.yaml (or of each STEM_PART.yaml, of which
# part=PART or decoder=PART chooses one) and writes the artefact even when some cell failed; STEM writes it from the cells that exist.
sweeps = $(basename $(notdir $(wildcard conf/experiment/$(1).yaml conf/experiment/$(1)_$(or $(part),$(decoder),*).yaml)))
define artefact
.PHONY: reproduce-$(1) $(1)
reproduce-$(1): profile .venv/installed
	@code=0; for sweep in $(sweeps); do \
	  for search in $$$$(grep -q growmap_ conf/experiment/$$$$sweep.yaml && echo grow_map; grep -q best_ conf/experiment/$$$$sweep.yaml && echo best_shape); do \
	    $$(PY) -m experiments.$$$$search experiment=$$$$sweep profile=$$(PROFILE) results=$$(RESULTS) || code=$$$$?; \
	  done; \
	  $$(PY) -m experiments.run experiment=$$$$sweep profile=$$(PROFILE) results=$$(RESULTS) || code=$$$$?; \
	done; \
	$$(PY) -m analysis.$(1) --profile $$(PROFILE) --results $$(RESULTS); exit $$$$code
$(1): profile .venv/installed
	@$$(PY) -m analysis.$(1) --profile $$(PROFILE) --results $$(RESULTS)
endef
$(foreach stem,$(ARTEFACTS),$(eval $(call artefact,$(stem))))

.PHONY: audit
audit: .venv/installed ## is a verifier exact? every registered one, or VERIFIER=name or VERIFIER=path/to/file.py:Class
	@$(PY) -m experiments.audit --results $(RESULTS) $(if $(VERIFIER),--verifier '$(VERIFIER)')

.PHONY: bench
bench: .venv/installed ## our loops against transformers' generate, and the cost of every rule, as ratios within one run
	@$(PY) -m experiments.bench
	@$(PY) -m experiments.bench.rules

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
