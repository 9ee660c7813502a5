package volfs

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"example.org/slipway/volume/block"
)

type closing struct {
	block.Volume
	closed chan struct{}
}

func (c closing) Size() int64  { return 0 }
func (c closing) Close() error { close(c.closed); return nil }

// TestGoneWhileItOpens checks a volume whose file is gone before its opening ends. It is closed,
// and not opened again for those who waited for it.
func TestGoneWhileItOpens(t *testing.T) {
	gate, v := make(chan struct{}), closing{closed: make(chan struct{})}
	opens := 0
	f := &file{bound: time.Minute, base: t.Context(), log: slog.New(slog.DiscardHandler), opener: func(context.Context, block.Mapping) (block.Volume, error) {
		opens++
		<-gate
		return v, nil
	}}
	f.mu.Lock()
	f.launch()
	f.mu.Unlock()
	if err := f.shut(); err != nil {
		t.Error(err)
	}
	close(gate)
	select {
	case <-v.closed:
	case <-time.After(20 * time.Second):
		t.Error("it stays open")
	}
	if _, err := f.use(t.Context()); err == nil || opens != 1 {
		t.Errorf("used after the end: %v, %d opens", err, opens)
	}
}
