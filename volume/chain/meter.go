package chain

import (
	"sync"

	"example.org/slipway/volume/block"
)

// reportStep is how many bytes are written between two calls of Progress.
const reportStep = 256 << 10

// meter counts what is written, and reports it.
type meter struct {
	mu       sync.Mutex // guards all below, and the calls of tell
	tell     func(block.Progress)
	now      block.Progress
	reported int64
}

// begin sets how much there is to write. A restarted build counts from zero again.
func (m *meter) begin(tell func(block.Progress), total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tell, m.now, m.reported = tell, block.Progress{Total: total}, 0
}

func (m *meter) volume(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Volume, m.now.Waiting = id, false
	m.report()
}

func (m *meter) waiting(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Volume, m.now.Waiting = id, true
	m.report()
}

func (m *meter) add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Written += n
	if m.now.Written-m.reported >= reportStep || m.now.Written >= m.now.Total {
		m.report()
	}
}

func (m *meter) report() {
	m.reported = m.now.Written
	if m.tell != nil {
		m.tell(m.now)
	}
}
