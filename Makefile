# One command each; every target makes what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# The tests start Python a hundred times: compiling everything each time would cost more than they do.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs test test-spark test-s3 test-kafka test-browser test-integrations check bench bench-baseline bench-compare torture fuzz build clean

$(READY): setup.cfg setup.py pyproject.toml records/_kernels.pyx index/_packing.pyx fetch/_objects.pyx base/_mapping.pyx
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --compile -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/python -m examples.flights

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal --ignore tests/spark --ignore tests/browser tests

# Needs Java 17 or later. One process: its tests share a Spark.
test-spark: $(READY)
	$(BIN)/python -m pytest tests/spark

# Needs Ceph's gateway: see tests/tier/radosgw.py.
test-s3: $(READY)
	$(BIN)/python -m pytest tests/tier/radosgw_lane.py

# A relay on real brokers: 45 MB of jars by Maven, once, and Java 17 or later. See tests/relay/broker.py.
test-kafka: $(READY)
	$(BIN)/python -m pytest -p no:xdist tests/relay/brokers_lane.py

# The frameworks' own tests over our adapters, in an environment each.
test-integrations: $(READY)
	$(BIN)/python -m tests.integrations.upstream

# The page in Debian's Chromium, which is installed where it is missing.
test-browser: $(READY)
	test -x /usr/bin/chromium || { apt-get update -qq && apt-get install -y -qq chromium fonts-dejavu-core; }
	$(BIN)/python -m pip install --quiet -e '.[browser]'
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/browser

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The diagram and the list of files in docs/architecture.md, from setup.cfg and the modules' first lines; then the pages,
# into site/, with warnings as errors. The last line fails where a page would load anything from another host.
docs: $(READY)
	$(BIN)/python -m tests.architecture
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	$(BIN)/mkdocs build --quiet --strict
	! grep -rnoE '<(script|link|img|iframe)[^>]* (src|href)="(https?:)?//[^"]*' site --include '*.html'

# A third of every campaign of which `make test` takes a share: tests/campaigns/__init__.py. With HOURS=2, their lanes
# for so long, share after share; LANE=kills takes one of them, JOURNAL=… goes on with a run of before:
# tests/campaigns/torture.py.
torture: $(READY)
ifdef HOURS
	$(BIN)/python -m tests.campaigns.torture --hours $(HOURS) $(if $(LANE),--lane "$(LANE)") \
		$(if $(JOURNAL),--journal $(JOURNAL)) $(if $(REPORT),--report $(REPORT))
else
	AFTERLOG_WHOLE=1 $(BIN)/python -m pytest -n 2 --dist worksteal -o faulthandler_timeout=3600 \
		--ignore tests/spark --ignore tests/browser tests
endif

# Every decoder with sanitizers, in two processes: `make fuzz MINUTES=5`. Needs gcc on Linux.
MINUTES ?= 60
fuzz: $(READY)
	$(BIN)/python -m tests.fuzzing.long_run $(MINUTES) 2

# The named workloads, the rivals (twenty minutes or more), what is served (half an hour), and the pages with them.
bench: $(READY)
	$(BIN)/python -m pytest -p no:xdist --ignore bench/micro bench --benchmark-sort=name
	$(BIN)/python -m bench.rivals
	$(BIN)/python -m bench.served
	$(BIN)/python -m bench.report

# The parts one by one, in CPU time, against the committed baseline; a median that is a third higher fails. A baseline is
# good for the machine that it was taken on: `make bench-baseline` before a change, `make bench-compare` behind it.
MICRO := -p no:xdist bench/micro --benchmark-timer=time.process_time --benchmark-sort=name
bench-baseline: $(READY)
	$(BIN)/python -m pytest $(MICRO) --benchmark-json=bench/micro/baseline.json

bench-compare: $(READY)
	$(BIN)/python -m pytest $(MICRO) --benchmark-compare=bench/micro/baseline.json --benchmark-compare-fail=median:33%

build: $(READY)
	$(BIN)/python setup.py --quiet build_ext --inplace

clean:
	rm -rf $(VENV) build *.egg-info records/_kernels.c index/_packing.c fetch/_objects.c base/_mapping.c records/*.so index/*.so fetch/*.so base/*.so .demo
