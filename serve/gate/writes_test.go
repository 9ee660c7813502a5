package gate

import (
	"context"
	"errors"
	"testing"
	"time"

	"example.org/slipway/oci"
)

// TestWriteGate checks that writes go on after an attempt to stop them has failed.
func TestWriteGate(t *testing.T) {
	g := NewWrites()
	leave, err := g.Enter()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := g.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stopped while a write is under way: %v", err)
	}
	leave()
	if leave, err = g.Enter(); err != nil {
		t.Fatalf("after a stop in vain: %v", err)
	}
	stopping := g.Stopping()
	done := make(chan error)
	go func() { done <- g.Stop(t.Context()) }()
	<-stopping
	if _, err := g.Enter(); !oci.HasCode(err, oci.CodeUnavailable) {
		t.Errorf("a write while writes are being stopped: %v", err)
	}
	if err := g.Stop(t.Context()); !errors.Is(err, errMoving) {
		t.Errorf("stopped twice: %v", err)
	}
	leave()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := g.Enter(); err == nil {
		t.Error("a write while writes are stopped")
	}
	g.Resume()
	if leave, err = g.Enter(); err != nil {
		t.Fatal(err)
	}
	leave()
}
