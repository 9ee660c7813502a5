package gear

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
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

// operation carries out number i of a load, counted over all clients. It returns the number of
// bytes that it moved. buf belongs to the client.
type operation func(ctx context.Context, buf []byte, i int) (int64, error)

// clientBuffer is the number of bytes that a client reads at once.
const clientBuffer = 256 << 10

// underLoad makes clients do operations for a time. Before that they run unmeasured for a tenth of
// it.
func underLoad(ctx context.Context, s *server, clients int, least time.Duration, do operation) (Sample, error) {
	if _, _, err := runLoad(ctx, clients, least/10, do); err != nil {
		return Sample{}, err
	}
	m, err := measure.StartMeter(s.process.Pid())
	if err != nil {
		return Sample{}, err
	}
	took, bytes, err := runLoad(ctx, clients, least, do)
	if err != nil {
		return Sample{}, err
	}
	u, err := m.Stop()
	if err != nil {
		return Sample{}, err
	}
	ms := func(q float64) float64 {
		return float64(took[min(int(q*float64(len(took))), len(took)-1)]) / float64(time.Millisecond)
	}
	out := Sample{Ops: len(took), Bytes: bytes, Seconds: u.Elapsed.Seconds(), ServerCPU: u.Server.Seconds(), ClientCPU: u.Client.Seconds(),
		OtherCPUs: u.OtherCPUs, P50ms: ms(0.5), P99ms: ms(0.99)}
	_, out.PeakRSS, err = measure.Memory(m.PIDs)
	return out, err
}

// runLoad returns the time of each operation, sorted. The first error ends the load.
func runLoad(ctx context.Context, clients int, least time.Duration, do operation) (took []time.Duration, bytes int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, moved atomic.Int64
	var wg sync.WaitGroup
	each := make([][]time.Duration, clients)
	end := time.Now().Add(least)
	for c := range clients {
		wg.Go(func() {
			buf := make([]byte, clientBuffer)
			for ctx.Err() == nil && time.Now().Before(end) {
				begin := time.Now()
				n, err := do(ctx, buf, int(next.Add(1)-1))
				if err != nil {
					cancel(err)
					return
				}
				moved.Add(n)
				each[c] = append(each[c], time.Since(begin))
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, 0, err
	}
	took = slices.Concat(each...)
	if len(took) == 0 {
		return nil, 0, errors.New("no operation was done")
	}
	slices.Sort(took)
	return took, moved.Load(), nil
}
