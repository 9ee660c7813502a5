# Most people need only `make demo` and `make test`; the other targets are for development.
GO      ?= go
VERSION ?= $(patsubst v%,%,$(shell git describe --tags --always --dirty 2>/dev/null || echo dev))
LDFLAGS  = -s -w -X example.org/slipway/cmd/slipway/command.Version=$(VERSION)
FUZZTIME ?= 60s

.PHONY: demo test test-ceph test-kubernetes test-systemd soak run build build-ceph bench bench-gear bench-start bench-trace bench-tiers bench-mirrors bench-cider bench-peers bench-rebuild reproduce observe lint coverage site fuzz release release-check deb image clean

demo: build
	scripts/setup.sh demo
	scripts/demo.sh

test: setup-build
	scripts/setup.sh test
	scripts/test.sh

# Only the suites of volumes, on a Ceph that they start.
test-ceph: setup-build
	scripts/setup.sh test
	scripts/test-ceph.sh

# Tests with Kubernetes clusters on this machine, as root. The first run builds Kubernetes.
test-kubernetes: setup-build
	scripts/setup.sh test
	scripts/setup.sh kubernetes
	scripts/test-kubernetes.sh

# Tests of the Debian package in a Debian that systemd boots.
test-systemd: setup-build
	scripts/setup.sh systemd
	scripts/test-systemd.sh

# Runs the fault tests in turn for the time FOR, and writes docs/reliability.md.
FOR ?= 45m
soak: setup-build
	scripts/setup.sh test
	FOR=$(FOR) scripts/soak.sh

run: build
	bin/slipway serve --root slipway-data --addr 127.0.0.1:5000

build: setup-build
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/slipway ./cmd/slipway

# Builds the binary with the driver rbd, which links librbd. It needs a C compiler and
# librbd-dev. The tag pacific of go-ceph leaves out calls that the librbd of Ceph 16 lacks.
build-ceph: setup-build
	CGO_ENABLED=1 $(GO) build -trimpath -tags 'ceph pacific' -ldflags '$(LDFLAGS)' -o bin/slipway-ceph ./cmd/slipway

bench: build
	scripts/setup.sh bench
	scripts/bench.sh

bench-gear: build
	scripts/setup.sh bench
	scripts/bench-gear.sh

bench-start: build
	scripts/setup.sh test
	scripts/setup.sh bench
	scripts/bench-start.sh

bench-trace: build
	scripts/setup.sh bench
	scripts/bench-trace.sh

bench-tiers: build
	scripts/setup.sh test
	scripts/bench-tiers.sh

bench-rebuild: build
	scripts/bench-rebuild.sh

bench-mirrors: build
	scripts/setup.sh bench
	scripts/bench-mirrors.sh

bench-peers: build
	scripts/setup.sh test
	scripts/bench-peers.sh

# Needs SLIPWAY_CORPUS.
bench-cider: build-ceph
	scripts/setup.sh test
	scripts/bench-cider.sh

# Measures tables and figures of the papers, and writes docs/reproduction.md. ONLY names parts;
# the parts of Cider need make build-ceph.
ONLY ?=
reproduce: build
	scripts/setup.sh test
	scripts/setup.sh bench
	ONLY='$(ONLY)' scripts/reproduce.sh

# Runs Prometheus with deploy/prometheus on loopback, until Ctrl-C.
observe:
	scripts/setup.sh observe
	scripts/observe.sh

lint: setup-build
	scripts/setup.sh lint
	scripts/lint.sh

# Measures how much of the code the tests run; fails if it is less than scripts/coverage-floor.
coverage: setup-build
	scripts/coverage.sh

# Makes HTML of the documentation, in dist/site; fails if a link leads nowhere.
site: setup-build
	cd integration && $(GO) run ./cmd/site -root .. -out ../dist/site

# Runs each fuzzer in turn for FUZZTIME.
fuzz:
	scripts/fuzz.sh $(FUZZTIME)

# Builds everything that a release consists of, from the checked-out tag, into dist.
release: setup-build
	scripts/setup.sh release
	scripts/release.sh

# Checks that two builds of the same sources in two directories are equal, and that lintian
# finds no errors.
release-check: setup-build
	scripts/setup.sh release
	scripts/release.sh check

# Builds one kind of package for a test, even if files differ from the commit.
deb image: setup-build
	RELEASE_DIRTY=1 scripts/release.sh $@

clean:
	rm -rf bin dist

.PHONY: setup-build
setup-build:
	@scripts/setup.sh build
