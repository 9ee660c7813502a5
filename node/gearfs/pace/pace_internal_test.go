package pace

import (
	"errors"
	"os/exec"
	"runtime"
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	const ms = time.Millisecond
	var run, wait time.Duration
	var failed error
	p := &Pace{times: func() (time.Duration, time.Duration, error) { return run, wait, failed }}
	for _, tt := range []struct {
		name              string
		ran, waited, want time.Duration
		err               error
	}{
		{name: "nothing yet"},
		{name: "an idle machine", ran: 20 * ms},
		{name: "waits now and then", ran: 20 * ms, waited: 5 * ms},
		{name: "too little to tell", ran: ms, waited: 3 * ms},
		{name: "with that before", ran: ms, waited: 3 * ms, want: 18 * ms},
		{name: "gets half", ran: 10 * ms, waited: 10 * ms, want: 90 * ms},
		{name: "gets nothing", waited: 50 * ms, want: 9 * ms},
		{name: "long on a busy machine", ran: time.Minute, waited: time.Minute, want: time.Second},
		{name: "cannot be told", ran: 10 * ms, waited: 10 * ms, err: errors.New("no")},
	} {
		run, wait, failed = run+tt.ran, wait+tt.waited, tt.err
		if got := p.Due(); got != tt.want {
			t.Errorf("%s: rests %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestPaceBusy checks that the kernel reports busy processors.
func TestPaceBusy(t *testing.T) {
	for range 3 * runtime.NumCPU() {
		cmd := exec.Command("/bin/sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := New()
	if p == nil {
		t.Fatal("the kernel does not tell the times of threads")
	}
	defer p.Close()
	sum := 0
	for end := time.Now().Add(20 * time.Second); p.Due() == 0; {
		if time.Now().After(end) {
			t.Fatal("no rest, beside three busy processes for each processor")
		}
		for i := range 100_000 {
			sum += i
		}
	}
	runtime.KeepAlive(sum)
}
