package replay

import (
	"bytes"
	"net"
	"testing"
	"time"

	"example.org/slipway/workload/replay/result"
)

func FuzzFrame(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, byte(frameHello), 'x'})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte{0, 0, 0, 3, 1, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, p, err := readFrame(bytes.NewReader(b), maxFrame)
		if err == nil && len(p)+5 > len(b) {
			t.Errorf("a frame of %d bytes from %d", len(p), len(b))
		}
	})
}

func FuzzSamplesFrame(f *testing.F) {
	f.Add(result.AppendSample(make([]byte, outboxHead), &result.Sample{Task: 7, Last: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, samples, err := decodeSamples(b)
		if err == nil && len(samples) > len(b) {
			t.Errorf("%d samples from %d bytes", len(samples), len(b))
		}
	})
}

// FuzzWorker sends a worker anything that a coordinator might send. The worker must end
// with an error, and not on its own.
func FuzzWorker(f *testing.F) {
	f.Add([]byte("{}"), byte(frameConfig))
	f.Add([]byte(`{"start":1}`), byte(frameBegin))
	f.Add([]byte{}, byte(frameEnd))
	f.Add([]byte{1, 2, 3}, byte(frameTasks))
	f.Fuzz(func(t *testing.T, payload []byte, kind byte) {
		ours, theirs := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = NewWorker(nil).Serve(t.Context(), theirs)
			theirs.Close()
		}()
		l := newLink(ours)
		if err := introduce(l, ""); err != nil {
			t.Error(err)
		}
		if err := ours.SetDeadline(time.Now().Add(time.Second)); err != nil {
			t.Error(err)
		}
		_ = l.send(frameType(kind), payload) // the connection may be gone already
		ours.Close()
		<-done
	})
}

// TestSamplesOutOfTurn has a worker answer before it is asked.
func TestSamplesOutOfTurn(t *testing.T) {
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer theirs.Close()
		l := newLink(theirs)
		if err := greet(l, ""); err != nil {
			t.Error(err)
			return
		}
		pings := 0
		for {
			kind, b, err := l.receive(time.Minute)
			if err != nil {
				return
			}
			if kind != framePing {
				continue
			}
			if err := l.send(framePong, append(b, make([]byte, 8)...)); err != nil {
				return
			}
			if pings++; pings == clockRounds && l.send(frameSamples, result.AppendSample(make([]byte, outboxHead), &result.Sample{})) != nil {
				return
			}
		}
	}()
	c, err := newCoordinator([]net.Conn{ours}, []string{"w"}, "", config{}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); len(c.live()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the worker is still taken for one")
		}
	}
	c.close()
	<-done
}
