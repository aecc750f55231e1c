SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PY := .venv/bin/python
ARTEFACTS := $(basename $(notdir $(wildcard conf/experiment/*.yaml)))
PROFILES := $(sort $(basename $(notdir $(wildcard conf/profile/*))))
RESULTS ?= results
# As the shell reads it: a path may hold a space.
QUOTED = '$(subst ','\'',$(1))'
override RESULTS := $(call QUOTED,$(RESULTS))
VARIABLES := PROFILE RESULTS VERIFIER WANDB SWEEP part PY
# Those of the command line; a variable of the environment that happens to have such a name is none of them.
GIVEN := $(foreach name,$(.VARIABLES),$(if $(findstring command,$(origin $(name))),$(name)))
UNKNOWN := $(filter-out $(VARIABLES),$(GIVEN))
ifneq ($(UNKNOWN),)
$(error unknown variable $(foreach name,$(UNKNOWN),$(name)=$($(name))); allowed: $(VARIABLES))
endif
# Of these, each goal has its own; another one's would change nothing.
OF_audit := VERIFIER
OF_report := SWEEP
OF_reproduce := WANDB
$(foreach name,$(ARTEFACTS),$(eval OF_reproduce-$(name) := part WANDB))
GOALS := $(or $(MAKECMDGOALS),$(.DEFAULT_GOAL))
OWNED := $(sort $(foreach name,$(filter OF_%,$(.VARIABLES)),$($(name))))
UNUSED := $(filter-out $(foreach goal,$(GOALS),$(OF_$(goal))),$(filter $(OWNED),$(GIVEN)))
ifneq ($(UNUSED),)
$(error $(UNUSED) changes nothing for make $(GOALS); allowed: $(or $(sort $(foreach goal,$(GOALS),$(OF_$(goal)))),none of $(OWNED)))
endif

# Without a word from the user, analysis.cli chooses the profile, as it does for every command that is typed. It
# is asked once, by the first recipe that needs to know, since it may have to ask torch.
ifdef PROFILE
CHOSEN := $(PROFILE) (PROFILE=$(PROFILE) was given)
NAMED := $(PROFILE)
ifeq ($(filter $(PROFILE),$(PROFILES)),)
$(error unknown PROFILE '$(PROFILE)'; allowed: $(PROFILES))
endif
else
ASK = $(shell $(PY) -m analysis.cli 2>/dev/null || python3 -m analysis.cli)
CHOSEN = $(eval CHOSEN := $$(ASK))$(or $(CHOSEN),$(error no profile could be chosen; give PROFILE))
PROFILE = $(firstword $(CHOSEN))
endif
OWN = profile=$(PROFILE) results=$(RESULTS)
# With WANDB=mode a sweep shows its cells and its table on W&B in that mode.
SENT_AS := $(WANDB:%=wandb.mode=%)
# What stops make stops the sweep of a recipe, and then nothing follows.
RUN_SWEEP = sweep() { $(PY) -m experiments.run "$$@" $(OWN) $(SENT_AS) & child=$$!; \
	trap 'kill $$child || true; wait $$child || true; exit 130' INT TERM; wait $$child; }; code=0; sweep
PLANS = $(RESULTS)/$(PROFILE)/plans

# Lines that begin with `##@` are groups, and those of targets end with their text. Artefacts have rules for all of
# them at once, so that their lines stand here.
.PHONY: help
help:
	@awk -F ':.*## ' '/^##@ / {print "\n" substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  %-17s  %s\n", $$1, $$2} \
	  /^##@ start here/ {print "  table1 report      our Table 1, and all as one page, from the published cells: nothing is measured"} \
	  /^##@ the paper/ {print "  reproduce-NAME     measure every missing cell of NAME, then write it"; \
	    print "  NAME               write it from the cells that exist, or else the published ones: seconds"; \
	    print "                     NAME: $(wordlist 1,9,$(ARTEFACTS))"; \
	    print "                           $(wordlist 10,99,$(ARTEFACTS))"}' $(MAKEFILE_LIST) | sed 1d
	@printf '\n%s\n' 'variables, as in: make reproduce-table1 PROFILE=smollm2'
	@printf '  %-17s  %s\n' \
	  PROFILE=name '$(PROFILES)' \
	  RESULTS=folder 'of raw/ and PROFILE/, now '$(RESULTS) \
	  part=name 'of reproduce-NAME: one part of several; all: further runs, too' \
	  WANDB=mode 'online or offline: cells and their table to W&B, see docs/dashboards.md' \
	  PY=python 'used as the shell reads it, without installing anything'

# A Python that is given with PY is used as it is.
ifneq ($(filter PY,$(GIVEN)),)
.PHONY: .venv/installed
.venv/installed: ;
else
.venv/installed: pyproject.toml constraints.txt
	@echo "installing the pinned dependencies into .venv (a few minutes, once)"
	python3 -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
endif

##@ start here
.PHONY: install
install: .venv/installed ## make .venv with the pinned dependencies; then: source .venv/bin/activate

.PHONY: profile
profile: .venv/installed ## which profile it is without PROFILE, and why
	@echo "profile: $(CHOSEN)"

.PHONY: doctor
doctor: profile .venv/installed ## can the profile run here: versions, device, memory, hub, disk
	@$(PY) -m experiments.doctor --profile $(PROFILE) --results $(RESULTS)

.PHONY: audit
audit: profile .venv/installed ## are verifiers exact? all, or VERIFIER=name or VERIFIER=path/to/file.py:Class
	@$(PY) -m experiments.audit $(OWN) $(if $(VERIFIER),$(call QUOTED,$(VERIFIER)))

##@ the paper's tables and figures, and ours
# One stem per artefact: conf/experiment/STEM names its cells, part by part where it has several, analysis.STEM
# writes it, even when some cell failed.
.PHONY: $(ARTEFACTS) $(ARTEFACTS:%=reproduce-%)
$(ARTEFACTS:%=reproduce-%): reproduce-%: profile .venv/installed
	@$(RUN_SWEEP) experiment=$*$(if $(part),/$(part)) || code=$$?; \
	$(PY) -m analysis.$* --profile $(PROFILE) --results $(RESULTS); exit $$code
$(ARTEFACTS): profile .venv/installed
	@$(PY) -m analysis.$@ --profile $(PROFILE) --results $(RESULTS)

# All artefacts are planned and measured as one sweep, the small ones first, so that cells which they share run
# once. What the profile lacks something for has no plan, and is not written. Stopping it stops all of it.
.PHONY: reproduce
reproduce: profile .venv/installed ## every artefact and the page: what is missing is measured; stopped, it goes on
	@echo "planning every artefact, which takes a while before the first cell"
	@$(RUN_SWEEP) 'experiment=glob(*)' || code=$$?; \
	for stem in $(ARTEFACTS); do \
	  if [ -e $(PLANS)/$$stem.json ] || [ -e $(PLANS)/$$stem ]; then \
	    $(PY) -m analysis.$$stem --profile $(PROFILE) --results $(RESULTS) || code=$$?; fi; done; \
	$(PY) -m analysis.page --profile $(PROFILE) --results $(RESULTS) || code=$$?; exit $$code

.PHONY: status
status: profile .venv/installed ## what is done, running, failed and missing, and how long the rest takes here
	@$(PY) -m experiments.status --profile $(PROFILE) --results $(RESULTS)

.PHONY: verify
verify: .venv/installed ## is every file of RESULTS and every model as it was written? names the damaged
	@$(PY) -m experiments.verify --results $(RESULTS)

.PHONY: report
report: profile .venv/installed ## all artefacts as one page, from what exists or is published; or SWEEP=name
	@$(PY) -m analysis.page --profile $(PROFILE) --results $(RESULTS) $(if $(SWEEP),--sweep $(call QUOTED,$(SWEEP)))

##@ is an engine exact? see also: resispec transcripts, resispec serve, resispec judge
WITH_ENGINES = $(if $(filter PY,$(GIVEN)),,$(PY) -m pip install --quiet --disable-pip-version-check \
  --constraint constraints.txt --editable '.[engines]')
.PHONY: gallery
gallery: .venv/installed ## faults that shipped, rebuilt, and what finds them (installs `engines`)
	@$(WITH_ENGINES)
	@$(PY) -m referee.gallery --results $(RESULTS) $(NAMED:%=--pair %)
	@$(PY) -m analysis.gallery --results $(RESULTS) $(NAMED:%=--pair %)

##@ studies
# The faults are planted by the tests.
.PHONY: faults
faults: profile .venv/installed ## does the audit find planted faults, does it accuse exact verifiers? two hours
	@$(PY) -m tests.faults $(OWN)
	@$(PY) -m tests.false_alarms $(OWN)
	@$(PY) -m tests.power $(OWN)

ifneq ($(and $(filter bench,$(GOALS)),$(filter-out embedded smollm2,$(NAMED))),)
$(error make bench has no PROFILE=$(NAMED); allowed: embedded smollm2)
endif
.PHONY: bench
bench: .venv/installed ## our loops and forwards beside transformers; PROFILE=smollm2: beside engines
ifeq ($(NAMED),smollm2)
	@$(WITH_ENGINES)
	@$(PY) -m experiments.bench.peers --results $(RESULTS)
else
	@$(PY) -m experiments.bench.decoders --results $(RESULTS)
	@$(PY) -m experiments.bench.rules --results $(RESULTS)
	@$(PY) -m experiments.bench.counts --results $(RESULTS)
	@$(PY) -m experiments.bench.memory --results $(RESULTS)
	@$(PY) -m experiments.bench.forwards --results $(RESULTS)
endif

.PHONY: joint
joint: .venv/installed ## what exact verifiers of a small tree can accept, and what each leaves; 5 min
	@$(PY) docs/studies/joint_optimum.py --results $(RESULTS)

##@ for those who change something here
.PHONY: test
test: .venv/installed ## the contracts, in under 5 minutes (CPU, no network)
	@$(PY) -m pytest -m "not slow"

.PHONY: test-all
test-all: .venv/installed ## every test: trainings, power, faults, architectures, engines, pages, too
	@$(PY) -m pytest

# A processor's own kernels are those of every other test command.
.PHONY: test-kernels
test-kernels: .venv/installed ## the tests of numerics with the kernels of other processors
	@own=$$($(PY) -c "import torch; print(torch.backends.cpu.get_cpu_capability().lower())"); \
	for capability in default avx2; do \
	  [ "$$capability" != "$$own" ] || continue; \
	  echo "numerics with the kernels of $$capability"; \
	  ATEN_CPU_CAPABILITY=$$capability $(PY) -m pytest -m numerics; done

.PHONY: test-gpu
test-gpu: .venv/installed ## the tests that need a CUDA device, and times of a step of Llama-2-7B's size
	@$(PY) -m pytest -o addopts= -q --strict-markers -m cuda
	@$(PY) -m experiments.bench.step_time --device cuda --results $(RESULTS)

NEWEST := tests/models/test_custom_generate.py tests/models/test_architectures.py tests/reports/test_metric_table.py
.PHONY: test-newest
test-newest: ## a short suite with the newest packages, in a temporary venv (network)
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	python3 -m venv "$$folder"; \
	"$$folder/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev]'; \
	"$$folder/bin/python" -m pip list --disable-pip-version-check | grep -E '^(numpy|pandas|torch|transformers) '; \
	"$$folder/bin/python" -m pytest $(NEWEST)

# The schemas are part of the package: nothing is asked of the network.
BIN = $(dir $(shell command -v $(PY)))
SCHEMA = $(BIN)check-jsonschema --quiet --builtin-schema vendor
FORMS := .github/ISSUE_TEMPLATE
.PHONY: lint
lint: .venv/installed ## ruff, mypy, hadolint, and what containers and GitHub read by its schemas
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(BIN)hadolint Dockerfile
	@$(SCHEMA).compose-spec compose.yaml
	@$(SCHEMA).citation-file-format CITATION.cff
	@$(SCHEMA).github-workflows $(wildcard .github/workflows/*.yml)
	@$(SCHEMA).github-issue-config $(FORMS)/config.yml
	@$(SCHEMA).github-issue-forms $(filter-out %/config.yml,$(wildcard $(FORMS)/*.yml))

.PHONY: publish
publish: profile .venv/installed ## for maintainers: make what results/PROFILE holds the published numbers
	@$(PY) -m analysis.publish --profile $(PROFILE) --results $(RESULTS)

.PHONY: clean
clean: ## remove caches of tools, which come back in seconds; nothing that was measured
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
