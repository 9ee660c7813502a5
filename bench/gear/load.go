package gear

import (
	"context"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// Sample is one measurement of a server under load.
type Sample struct {
	Round   int     `json:"round"`
	Ops     int     `json:"ops"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"sec"`
	// These are the CPU times of the server's processes and of the client, in seconds.
	ServerCPU float64 `json:"server_cpu_sec"`
	ClientCPU float64 `json:"client_cpu_sec"`
	// OtherCPUs is the number of CPUs that everything else on the machine kept busy.
	OtherCPUs float64 `json:"other_cpus"`
	P50ms     float64 `json:"p50_ms"`
	P99ms     float64 `json:"p99_ms"`
	PeakRSS   int64   `json:"peak_rss"`
	// Read is the number of bytes that the server read from files and connections together.
	Read int64 `json:"read,omitempty"`
}

// cpuMs returns the server's CPU time for an operation, in ms.
func (s *Sample) cpuMs() float64 { return 1000 * s.ServerCPU / float64(s.Ops) }

// cpuPerGB returns the server's CPU time in s for 10^9 bytes.
func (s *Sample) cpuPerGB() float64 { return s.ServerCPU / float64(s.Bytes) * 1e9 }

// rate returns the rate in MB/s.
func (s *Sample) rate() float64 { return float64(s.Bytes) / 1e6 / s.Seconds }

// operation carries out operation i of a load, counted over all clients. It returns the
// number of bytes that it moved. buf belongs to the client.
type operation func(ctx context.Context, buf []byte, i int) (int64, error)

// underLoad makes clients carry out operations for a time. Before that, they run
// unmeasured for a tenth of that time.
func underLoad(ctx context.Context, s *server, clients int, least time.Duration, do operation) (Sample, error) {
	l := measure.Clients{N: clients, Least: least / 10, Do: func(ctx context.Context, w *measure.Worker, i int) (int64, error) { return do(ctx, w.Chunk, i) }}
	if _, err := l.Run(ctx); err != nil {
		return Sample{}, err
	}
	m, err := measure.StartMeter(s.process.Pid())
	if err != nil {
		return Sample{}, err
	}
	l.Least = least
	o, err := l.Run(ctx)
	if err != nil {
		return Sample{}, err
	}
	u, err := m.Stop()
	if err != nil {
		return Sample{}, err
	}
	out := Sample{Ops: len(o.Took), Bytes: o.Bytes, Seconds: u.Elapsed.Seconds(), ServerCPU: u.Server.Seconds(), ClientCPU: u.Client.Seconds(),
		OtherCPUs: u.OtherCPUs, P50ms: o.Ms(0.5), P99ms: o.Ms(0.99)}
	_, out.PeakRSS, err = measure.Memory(m.PIDs)
	return out, err
}
