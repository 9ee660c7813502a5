// Package mirrors tests the registry as a mirror of others. Real clients pull through it from real
// upstreams, which are then stopped. A link to an upstream delays, resets, truncates and refuses.
// On that link no client may see a wrong byte, or an error that asking again would have avoided.
//
// Environment:
//
//	SLIPWAY_MIRROR_CHAOS_FOR   how long the link is in trouble; default 8s
//	SLIPWAY_MIRROR_CHAOS_SEED  seed of workload and faults; default: the clock, logged
//	SLIPWAY_BENCH_ZOT          a zot binary for the private upstream; without it that is
//	                           another Slipway
//	SLIPWAY_BIN                absolute path of the binary under test
package mirrors
