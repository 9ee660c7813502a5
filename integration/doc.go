// Package integration tests the slipway binary from outside: with the clients that people
// use (docker with both of its image stores, containerd, podman, skopeo, buildah, crane,
// regctl, helm), and with faults (kill -9, power cuts, full disks, disks that fail,
// clients that lie, hang or disappear).
//
// The trees that Gear makes of images are compared with the trees that others unpack:
// containerd, umoci and tar (gear_oracle_test.go), and the overlay that a commit was made
// of.
//
// Everything here talks to a real server process on a loopback port with a separate root
// directory. The package shares no code with the product, so that a mistake in the
// product's idea of the protocol cannot hide itself.
//
// scripts/setup.sh test installs what the tests run; a test whose tool is absent is
// skipped with the reason, and scripts/test.sh fails on every skip that
// expected-skips.txt does not list.
//
// Environment:
//
//	SLIPWAY_BIN               absolute path of the binary under test; default: built
//	                          from ../cmd/slipway
//	SLIPWAY_TOOLS             directory whose bin/ holds the Go-built clients
//	SLIPWAY_SEED              seed of the random workloads; default: the clock, logged
//	SLIPWAY_KILL_ROUNDS       rounds of kill -9, default 20
//	SLIPWAY_POWERCUT_ROUNDS   rounds of power cuts, default 5
//	SLIPWAY_LYINGDISK_ROUNDS  rounds of power cuts on a disk that keeps a random part, default 3
//	SLIPWAY_GEARKILL_ROUNDS   rounds of kill -9 during conversions, default 10
//	SLIPWAY_GEARCUT_ROUNDS    rounds of power cuts during conversions, default 5
//	SLIPWAY_CHURNKILL_KILLS   kills -9 while layers are dropped and pulled, default 20
//	SLIPWAY_CHURNCUT_ROUNDS   power cuts during the same, default 4
//	SLIPWAY_BIG_LAYER_MIB     size of TestBigLayer's layer, default 512
//	SLIPWAY_ALLOW_SKIP        tools whose absence scripts/test.sh accepts
//	SLIPWAY_CONFORMANCE_V1    path of the v1.1.1 conformance suite's test binary
//	SLIPWAY_CONFORMANCE_V2    path of the newer conformance suite's program
//	SLIPWAY_NERDCTL           path of nerdctl 2.3 or newer
//	SLIPWAY_TEST_REGISTRY_CMD command of another registry to run the client
//	                          tests against, with {root} and {addr} replaced
package integration
