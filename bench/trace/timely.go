package trace

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// Timely reports whether a replay sends requests at the recorded times.
type Timely struct {
	Run      measure.Run   `json:"run"`
	Requests int64         `json:"requests"`
	Usage    measure.Spent `json:"usage"`
	Summary  replaySummary `json:"summary"`
}

// replaySummary holds the part of a replay's summary that is read. Times are in milliseconds.
type replaySummary struct {
	Requests int64            `json:"requests"`
	Outcomes map[string]int64 `json:"outcomes"`
	// Late is the number of requests that left more than 2 ms after their time.
	Late    int64       `json:"late"`
	Seconds float64     `json:"seconds"`
	Bytes   int64       `json:"bytes"`
	Lag     replayTimes `json:"lagMs"`
	Latency replayTimes `json:"latencyMs"`
	Service replayTimes `json:"serviceMs"`
	WarmUp  struct {
		Seconds float64 `json:"seconds"`
		Blobs   int64   `json:"blobs"`
		Errors  int64   `json:"errors"`
	} `json:"warmUp"`
	Valid   bool   `json:"valid"`
	Verdict string `json:"verdict"`
}

// replayTimes is a distribution of times.
type replayTimes struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// onTime returns the share of the requests that left within 2 ms of their time.
func (s *replaySummary) onTime() float64 {
	if s.Requests == 0 {
		return 0
	}
	return 1 - float64(s.Late)/float64(s.Requests)
}

const (
	timelyRequests = 100_000
	timelyRate     = 1000 // per second
	timelyQuick    = 2000
)

func runTimely(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Timely{Requests: timelyRequests}
	if b.Run.Quick {
		out.Requests = timelyQuick
	}
	store, err := b.pings(ctx, int(out.Requests))
	if err != nil {
		return err
	}
	defer b.Remove(store)
	sink, err := startSink()
	if err != nil {
		return err
	}
	defer sink.Close()
	if out.Usage, err = b.replay(ctx, store, &out.Summary, sink.url); err != nil {
		return err
	}
	s := &out.Summary
	if s.Requests != out.Requests || s.Outcomes["ok"] != s.Requests {
		return fmt.Errorf("%d requests with outcomes %v, want %d", s.Requests, s.Outcomes, out.Requests)
	}
	b.Logf("%.3f %% within 2 ms, p99 %.2f ms, %.2f CPUs busy with something else", 100*s.onTime(), s.Lag.P99, out.Usage.OtherCPUs)
	out.Run = b.Since(began)
	out.Run.Rounds = 1
	b.results.Timely = out
	return nil
}

// pings makes a store of requests at intervals of one millisecond.
func (b *bench) pings(ctx context.Context, n int) (store string, err error) {
	store = b.NewDir()
	list := store + ".uris"
	defer b.Remove(list)
	if err := os.WriteFile(list, bytes.Repeat([]byte("v2\n"), n), 0o600); err != nil {
		return "", err
	}
	_, _, err = b.Slipway(ctx, 0, "trace", "import", list, "-o", store, "--zone", "pings", "--format", "uris", "--rate", fmt.Sprint(timelyRate))
	return store, err
}

// replay sends a store's requests as recorded, without first storing content.
func (b *bench) replay(ctx context.Context, store string, into *replaySummary, url string) (measure.Spent, error) {
	result := b.NewDir()
	defer b.Remove(result)
	_, u, err := b.Slipway(ctx, 0, "trace", "replay", store, "-o", result, "--phase", "run", "--quiet", "--no-docker-config", "--target", "sink="+url)
	if err != nil && !measure.Judged(err) { // late requests are a result here, not an error
		return u, err
	}
	return u, measure.ReadJSON(into, result, "summary.json")
}

// sink is a server that answers every request at once.
type sink struct {
	*http.Server
	url string
}

func startSink() (*sink, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &sink{url: "http://" + l.Addr().String(), Server: &http.Server{
		Handler:           http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		ReadHeaderTimeout: time.Minute,
	}}
	go s.Serve(l) //nolint:errcheck // ends with the sink
	return s, nil
}

// Title is the heading.
func (t *Timely) Title() string { return "Replay at recorded times" }

// Head says how the part was measured.
func (t *Timely) Head() string { return t.Run.Head() }

// About says what was done.
func (t *Timely) About() string {
	return fmt.Sprintf("%d requests, 1 ms apart, are replayed as recorded to a server in this program that answers at once; it shares the machine with the replay. Lag is the time from when a request should leave to when it left.", t.Requests)
}

// Targets returns what is promised.
func (t *Timely) Targets() []measure.Target {
	target := measure.TargetOf("timely", "requests that leave within 2 ms of their time", 99, true, []float64{100 * t.Summary.onTime()})
	target.Unit = " %"
	return []measure.Target{target}
}

// Write writes the table.
func (t *Timely) Write(w *strings.Builder) {
	s := &t.Summary
	measure.Table(w, 0, []string{"requests", "within 2 ms, %", "lag p50 ms", "p99", "p99.9", "max", "latency p50 ms", "p99", "CPU s", "peak RSS MB", "other CPUs"},
		[][]string{{fmt.Sprint(s.Requests), fmt.Sprintf("%.3f", 100*s.onTime()), measure.Figure(s.Lag.P50), measure.Figure(s.Lag.P99), measure.Figure(s.Lag.P999),
			measure.Figure(s.Lag.Max), measure.Figure(s.Latency.P50), measure.Figure(s.Latency.P99), measure.Figure(t.Usage.CPU), measure.Figure(peakMB(t.Usage)), measure.Figure(t.Usage.OtherCPUs)}})
	w.WriteString("\nOther CPUs does not include the server, which is in this program.\n")
}

// Pictures returns no pictures.
func (t *Timely) Pictures() []measure.Picture { return nil }
