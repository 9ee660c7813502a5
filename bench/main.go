// Command bench measures Slipway. Its first argument is a suite. The results are in
// docs/bench*.md. The scripts scripts/bench*.sh run a suite as these pages describe.
package main

import (
	"example.org/slipway/integration/bench/cider"
	"example.org/slipway/integration/bench/gear"
	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/mirrors"
	"example.org/slipway/integration/bench/peers"
	"example.org/slipway/integration/bench/rebuild"
	"example.org/slipway/integration/bench/registry"
	"example.org/slipway/integration/bench/reproduce"
	"example.org/slipway/integration/bench/start"
	"example.org/slipway/integration/bench/tiers"
	"example.org/slipway/integration/bench/trace"
)

func main() {
	suites := []measure.Suite{registry.Suite(), gear.Suite(), start.Suite(), trace.Suite(), tiers.Suite(), mirrors.Suite(), cider.Suite(), rebuild.Suite(), peers.Suite()}
	measure.Main(append(suites, reproduce.Suite(suites...))...)
}
