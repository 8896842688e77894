# Few targets; `make help` lists them. Each sets up what it needs.
.DEFAULT_GOAL := help
.PHONY: help demo test check bench deb ramdisk os-image lock clean
BIN := .venv/bin
SETUP := packaging/setup
PACKAGES := protocol drivers agent control_plane ramdisk simulators rackwright
TYPED := $(PACKAGES) tests benchmarks

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: .venv/.installed .peers/.installed ## a control plane, a site agent and a small site, every operation, nothing left running
	@$(SETUP)/debian-packages.sh demo
	@$(BIN)/python packaging/demo

test: .venv/.installed .peers/.installed ## everything that must pass: lint, types, and all tests
	@$(SETUP)/debian-packages.sh test
	@$(MAKE) --no-print-directory lint
	@PYTHONHASHSEED=0 $(BIN)/pytest -q --numprocesses 2 --dist loadfile $(PYTEST)

.PHONY: e2e
e2e: .venv/.installed .peers/.installed ## the long runs: virtual machines from power-on to an installed Debian, and every fault on the way
	@$(SETUP)/debian-packages.sh e2e
	@RACKWRIGHT_E2E=full PYTHONHASHSEED=0 $(BIN)/pytest -q tests/e2e/metal tests/e2e/test_ramdisk_image.py \
		tests/e2e/test_ipxe_boot.py tests/simulators/test_machine_e2e.py $(PYTEST)

check: .venv/.installed ## format, lint, types and the fast tests
	@$(BIN)/ruff format .
	@$(MAKE) --no-print-directory lint
	@$(BIN)/pytest -q -m "not e2e" $(PYTEST)

.PHONY: acceptance nightly
acceptance: .venv/.installed ## every line of the specification's checklist, with its tests and whether they pass
	@$(SETUP)/debian-packages.sh test
	@$(BIN)/python -m tests.acceptance

nightly: .venv/.installed ## the engine's model, 10,000 runs (RACKWRIGHT_SEED=n repeats one), and long fuzzing
	@HYPOTHESIS_PROFILE=nightly $(BIN)/pytest -q tests/control_plane/engine/test_model.py
	@RACKWRIGHT_FUZZ=20 $(BIN)/pytest -q tests/drivers/redfish/test_fuzz.py tests/drivers/ipmi/test_fuzz.py

.PHONY: lint
lint:
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary $(TYPED)
	@$(BIN)/mypy --no-error-summary packaging/demo
	@$(BIN)/mypy --no-error-summary packaging/os-image

bench: .venv/.installed .peers/.installed ## one JSON line per benchmark; ONLY=name for one of them
	@$(SETUP)/debian-packages.sh bench
	@$(BIN)/python -m benchmarks $(ONLY)

ramdisk: .venv/.installed ## dist/ramdisk: the bootable image, its kernel and its initramfs
	@$(SETUP)/debian-packages.sh ramdisk
	@$(BIN)/rackwright ramdisk build --output dist/ramdisk

os-image: .venv/.installed ## dist/os-image: a Debian to deploy onto virtual machines, with its checksum (as root)
	@$(SETUP)/debian-packages.sh os-image
	@$(BIN)/python packaging/os-image

deb: .venv/.installed ## dist/*.deb, and a try in a clean Debian where root allows it
	@$(SETUP)/debian-packages.sh deb
	@packaging/deb/build.sh
	@packaging/deb/try.sh

lock: ## renews requirements/*.txt (needs uv)
	@$(SETUP)/lock.sh

clean: ## removes what the other targets made
	rm -rf .venv .peers build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/.installed: requirements/dev.txt pyproject.toml
	@$(SETUP)/debian-packages.sh python
	@$(SETUP)/venv.sh .venv requirements/dev.txt .

.peers/.installed: requirements/peers.txt
	@$(SETUP)/debian-packages.sh python
	@$(SETUP)/venv.sh .peers requirements/peers.txt
