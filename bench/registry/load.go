package registry

import (
	"context"

	"example.org/slipway/integration/bench/measure"
)

// measureLoad puts a load on a server and returns what it cost. The caller fills in what was
// measured.
func measureLoad(ctx context.Context, s *server, l measure.Clients) (Sample, error) {
	m, err := measure.StartMeter(s.Process.Pid())
	if err != nil {
		return Sample{}, err
	}
	o, err := l.Run(ctx)
	if err != nil {
		return Sample{}, err
	}
	u, err := m.Stop()
	if err != nil {
		return Sample{}, err
	}
	sample := usageSample(u)
	sample.Ops, sample.Bytes = len(o.Took), o.Bytes
	sample.P50, sample.P99 = o.Ms(0.50), o.Ms(0.99)
	sample.RSS, sample.PeakRSS, err = measure.Memory(m.PIDs)
	return sample, err
}

func usageSample(u measure.Usage) Sample {
	return Sample{Seconds: u.Elapsed.Seconds(), ServerCPU: u.Server.Seconds(), ClientCPU: u.Client.Seconds(), OtherCPUs: u.OtherCPUs}
}
