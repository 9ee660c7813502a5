package analyze_test

import (
	"context"
	"fmt"

	"example.org/slipway/internal/chart"
	"example.org/slipway/workload/analyze"
	"example.org/slipway/workload/trace/store"
)

// errorShare is a custom analysis: the share of requests that failed. It keeps only its
// counts. The plug-in describes its figure.
type errorShare struct{ failed, n int64 }

func (e *errorShare) Columns() store.Columns { return store.ColStatus }

func (e *errorShare) Add(b *store.Batch) {
	for _, status := range b.Status {
		e.n++
		if status >= 400 {
			e.failed++
		}
	}
}

func (e *errorShare) Result() []analyze.Result {
	share := float64(e.failed) / float64(max(e.n, 1))
	return []analyze.Result{{Requests: e.n,
		Values: []analyze.Value{{Name: "failed", Unit: analyze.Share, Value: share}},
		Series: []analyze.Series{{Name: "failed", Points: []analyze.Point{{Label: "failed", Y: share}}}}}}
}

func ExamplePlugin() {
	errors := analyze.Plugin{
		Figures: []analyze.Figure{{ID: "errors", Title: "Requests that failed", Definition: "The share of requests with a status of 400 or more.",
			Plot: analyze.Plot{Kind: analyze.PlotBars, X: chart.Axis{Title: "share of requests", Unit: chart.Share, Full: true}}}},
		New: func(store.Zone, *analyze.Options) analyze.Analysis { return &errorShare{} },
	}
	// A real program opens a store with store.Open and uses it here.
	traces := oneZone("here", []req{{status: 200}, {status: 200}, {status: 404}, {status: 200}})
	rep, err := analyze.Run(context.Background(), traces, &analyze.Options{Plugins: []analyze.Plugin{errors}})
	if err != nil {
		fmt.Println(err)
		return
	}
	share, _ := rep.Figure("errors").Zone("here").Value("failed")
	fmt.Println(share)
	// Output: 0.25
}
