package node

import "context"

// SetStep has f called after each step.
func (o *Options) SetStep(f func(string)) { o.step = f }

// SetProbe says whether the kernel can map RBD images.
func (o *Options) SetProbe(f func(ctx context.Context, kind, program string) error) { o.probe = f }

// ParseRecord and ParseDevices are for fuzzing.
func ParseRecord(b []byte) error {
	_, err := parseRecord(b)
	return err
}

func ParseDevices(b []byte) (map[string]string, error) { return parseDevices(b) }

// Sweep does at once what is done now and then.
func (m *Manager) Sweep() { m.sweep(m.ctx) }
