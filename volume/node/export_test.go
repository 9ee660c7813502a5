package node

import "context"

// SetStep sets a function that is called after each step.
func (o *Options) SetStep(f func(string)) { o.step = f }

// SetProbe sets the probe for whether the kernel can map RBD images.
func (o *Options) SetProbe(f func(ctx context.Context, kind, program string) error) { o.probe = f }

// ParseRecord and ParseDevices are exported for fuzzing.
func ParseRecord(b []byte) error {
	_, err := parseRecord(b)
	return err
}

func ParseDevices(b []byte) (map[string]string, error) { return parseDevices(b) }

// Sweep does at once what otherwise runs from time to time.
func (m *Manager) Sweep() { m.sweep(m.ctx) }
