package gear

import (
	"fmt"

	"example.org/slipway/integration/bench/measure"
)

// marks returns the lines that enclose the generated part of the document.
func marks() measure.Marks {
	return measure.Marks{
		Begin: "<!-- bench-gear:begin (scripts/bench-gear.sh writes what is between the two marks) -->",
		End:   "<!-- bench-gear:end -->",
	}
}

func percent(share float64) string { return fmt.Sprintf("%.1f", 100*share) }

// saved returns the share of old that new saves.
func saved(old, new int64) float64 {
	if old == 0 {
		return 0
	}
	return 1 - float64(new)/float64(old)
}
