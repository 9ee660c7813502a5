package pace

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestTerm lets a process with beats lack a processor at random times, on a clock of its own. A term
// must be longer by what the process lacked, less one distance of beats for each lack, and never by
// more.
func TestTerm(t *testing.T) {
	const step = time.Millisecond
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 1))
		began := time.Unix(1_000_000, 0)
		now, due := began, began.Add(beatEvery)
		var l Lateness
		l.Beat(now, due)
		after := time.Duration(1+rng.IntN(2000)) * step
		share := rng.Float64() * 0.9
		tm := term{began.Add(after), l.Total(began)}
		least, lacked := time.Duration(0), time.Duration(0)
		wake := tm.end
		for {
			if rng.Float64() < share { // no processor
				d := time.Duration(1+rng.IntN(150)) * step
				now = now.Add(d)
				lacked += d
				least += max(0, d-beatEvery-tolerance)
			} else {
				now = now.Add(step)
			}
			// What is due runs in any order.
			beat := func() {
				if !now.Before(due) {
					due = now.Add(beatEvery)
					l.Beat(now, due)
				}
			}
			if rng.IntN(2) == 0 {
				beat()
			}
			if !now.Before(wake) {
				rest := tm.rest(now, l.Total(now))
				if rest <= 0 {
					break
				}
				wake = now.Add(rest)
			}
			beat()
		}
		// The end is noticed up to one lack after it.
		if took := now.Sub(began); took < after+least || tm.end.Add(l.Total(now)-tm.late).After(began.Add(after+lacked)) {
			t.Errorf("seed %d: a term of %v took %v; the process lacked a processor for %v, of which %v must count", seed, after, took, lacked, least)
		}
	}
}

// pausedEnv makes this program run TestPaused's process.
const pausedEnv = "SLIPWAY_TEST_PAUSED"

// TestMain runs the process that TestPaused pauses.
func TestMain(m *testing.M) {
	if os.Getenv(pausedEnv) == "" {
		os.Exit(m.Run())
	}
	var late Metronome
	late.Start()
	began, over := time.Now(), make(chan struct{})
	late.Deadline(func() { close(over) }).Set(time.Second)
	fmt.Println("begun")
	<-over
	fmt.Println(time.Since(began).Milliseconds())
	late.Stop()
}

// TestPaused takes all processors from a process for longer than its deadline. The deadline must end
// when the process has run for that long, and not as soon as it runs again.
func TestPaused(t *testing.T) {
	t.Parallel()
	run := func(pause time.Duration) (ms int64) {
		t.Helper()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(slices.Clone(os.Environ()), pausedEnv+"=1")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "begun" {
			t.Fatalf("the process prints %q, %v", lines.Text(), lines.Err())
		}
		if pause > 0 {
			if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			<-time.After(pause)
			if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}
		if !lines.Scan() {
			t.Fatalf("the deadline does not end: %v", lines.Err())
		}
		if _, err := fmt.Sscan(strings.TrimSpace(lines.Text()), &ms); err != nil {
			t.Fatal(err)
		}
		return ms
	}
	// A busy machine only adds time.
	if ms := run(0); ms < 1000 {
		t.Errorf("a deadline of 1 s ended after %d ms", ms)
	}
	const pause = 2 * time.Second
	if ms := run(pause); ms < 1000+pause.Milliseconds()-100 {
		t.Errorf("a deadline of 1 s ended after %d ms, of which the process was paused for %v", ms, pause)
	}
}

// TestMetronome has users begin and end in any order. There are beats for as long as there is one.
func TestMetronome(t *testing.T) {
	t.Parallel()
	var m Metronome
	for range 3 {
		m.Start()
		m.Start()
		m.Stop()
		m.mu.Lock()
		first := m.late.due
		m.mu.Unlock()
		for end := time.Now().Add(time.Minute); ; <-time.After(beatEvery) {
			m.mu.Lock()
			due := m.late.due
			m.mu.Unlock()
			if due.After(first) {
				break
			}
			if time.Now().After(end) {
				t.Fatal("no beat while there is a user")
			}
		}
		m.Stop()
		before := m.Total(time.Now())
		if after := m.Total(time.Now().Add(time.Hour)); after != before {
			t.Errorf("late by %v in an hour without users", after-before)
		}
	}
}
