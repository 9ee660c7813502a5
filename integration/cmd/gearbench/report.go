package main

import (
	"fmt"

	"example.org/slipway/integration/internal/measure"
)

// marks are the lines between which the generated part of the document lies.
func marks() measure.Marks {
	return measure.Marks{
		Begin: "<!-- bench-gear:begin (scripts/bench-gear.sh writes what is between the two marks) -->",
		End:   "<!-- bench-gear:end -->",
	}
}

func percent(share float64) string { return fmt.Sprintf("%.1f", 100*share) }

// saved is the share that new saves of old.
func saved(old, new int64) float64 {
	if old == 0 {
		return 0
	}
	return 1 - float64(new)/float64(old)
}
