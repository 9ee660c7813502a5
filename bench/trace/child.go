package trace

import "example.org/slipway/integration/bench/measure"

// of returns a figure of several runs.
func of(list []measure.Spent, figure func(measure.Spent) float64) []float64 {
	var out []float64
	for _, u := range list {
		out = append(out, figure(u))
	}
	return out
}

func wall(u measure.Spent) float64      { return u.Wall }
func cpu(u measure.Spent) float64       { return u.CPU }
func peakMB(u measure.Spent) float64    { return float64(u.PeakRSS) / 1e6 }
func otherCPUs(u measure.Spent) float64 { return u.OtherCPUs }

// spread formats a figure of several runs.
func spread(list []measure.Spent, figure func(measure.Spent) float64) string {
	return measure.SpreadOf(of(list, figure)).String()
}

// worst returns a target for the greatest of some figures.
func worst(scenario, what string, limit float64, unit string, figures []float64) measure.Target {
	t := measure.TargetOf(scenario, what, limit, false, figures)
	t.Unit, t.Figure = unit, t.Rounds.Max
	return t
}
