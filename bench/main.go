// Command bench measures Slipway. Its first argument is a suite. What it writes is in docs/bench*.md,
// and scripts/bench*.sh run a suite as those pages say.
package main

import (
	"example.org/slipway/integration/bench/cider"
	"example.org/slipway/integration/bench/gear"
	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/mirrors"
	"example.org/slipway/integration/bench/registry"
	"example.org/slipway/integration/bench/start"
	"example.org/slipway/integration/bench/tiers"
	"example.org/slipway/integration/bench/trace"
)

func main() {
	measure.Main(registry.Suite(), gear.Suite(), start.Suite(), trace.Suite(), tiers.Suite(), mirrors.Suite(), cider.Suite())
}
