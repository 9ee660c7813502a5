package blocktest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/volume/block"
	"example.org/slipway/volume/chain"
)

// childEnv holds the job of a child process of the test binary.
const childEnv = "SLIPWAY_BLOCKTEST_CHILD"

// job is the work of another process.
type job struct {
	Where string
	Do    string // "read", "write", "build"
	ID    string
}

// Main must be called first by a driver's TestMain. In a process that [Run] started, it does that
// process's job with a store that open opens, and does not return.
func Main(open func(where string) (block.Store, error)) {
	text := os.Getenv(childEnv)
	if text == "" {
		return
	}
	var j job
	err := json.Unmarshal([]byte(text), &j)
	var s block.Store
	if err == nil {
		s, err = open(j.Where)
	}
	if err == nil {
		err = j.do(s)
	}
	if err != nil {
		fmt.Println("error:", strings.ReplaceAll(err.Error(), "\n", " "))
		os.Exit(1)
	}
	os.Exit(0)
}

func (j *job) do(s block.Store) error {
	ctx := context.Background()
	switch j.Do {
	case "read":
		v, err := s.Open(ctx, j.ID)
		if err != nil {
			return err
		}
		fmt.Println("open")
		_, err = io.Copy(io.Discard, os.Stdin)
		return errors.Join(err, v.Close())
	case "write":
		v, err := s.OpenWriter(ctx, j.ID)
		if err != nil {
			return err
		}
		return j.write(v)
	case "build":
		tb := &fatal{}
		im := NewImage(tb, 3, 3)
		n := 0
		im.Source.Before = func(context.Context, gear.File) error {
			if n++; n == 14 {
				fmt.Println("open") // within the second layer
				select {}
			}
			return nil
		}
		_, err := chain.Build(ctx, s, im.Layers, im.Source, nil)
		return err
	}
	return fmt.Errorf("unknown job %q", j.Do)
}

// write writes every block of a volume repeatedly, each time with the next byte, up to the largest.
// It reports each pass when it is durable.
func (j *job) write(v block.Volume) error {
	fmt.Println("open")
	for pass := byte(1); ; pass = min(pass, 254) + 1 {
		b := make([]byte, 3000)
		for i := range b {
			b[i] = pass
		}
		for off := int64(0); off+int64(len(b)) <= v.Size(); off += int64(len(b)) {
			if _, err := v.WriteAt(b, off); err != nil {
				return err
			}
		}
		if err := v.Flush(); err != nil {
			return err
		}
		fmt.Println(pass)
	}
}

// fatal is a testing.TB for use outside of tests, in calls that cannot fail.
type fatal struct{ testing.TB }

func (*fatal) Helper() {}

func (*fatal) Fatalf(format string, args ...any) {
	fmt.Printf("error: "+format+"\n", args...)
	os.Exit(1)
}

// process is another running process.
type process struct {
	t   *suite
	cmd *exec.Cmd
	in  io.Closer
	out *bufio.Reader
}

// start starts another process and waits until it has begun. It returns nil if the driver does not
// support that.
func (t *suite) start(do, id string) *process {
	t.Helper()
	if t.opts.Where == nil {
		t.Log("no other processes")
		return nil
	}
	text, err := json.Marshal(job{t.opts.Where(t.s), do, id})
	t.must(err, "Marshal")
	p := &process{t: t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := p.cmd.StdinPipe()
	t.must(err, "pipe")
	out, err := p.cmd.StdoutPipe()
	t.must(err, "pipe")
	p.in, p.out = in, bufio.NewReader(out)
	t.must(p.cmd.Start(), "start another process")
	t.Cleanup(p.kill)
	if got := p.hear(); got != "open" {
		t.Fatalf("the other process: %s", got)
	}
	return p
}

func (p *process) hear() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	p.t.must(err, "hear of the other process")
	return strings.TrimSpace(line)
}

// kill ends the process as a crash would. Only the first call has an effect.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// otherReader checks that a volume which another process reads is not removed before that process
// closes it or dies.
func (t *suite) otherReader() {
	ctx := t.Context()
	t.made("v", "", size, 0, Content(1, 4096))
	one := t.start("read", "v")
	if one == nil {
		return
	}
	two := t.start("read", "v")
	t.wants(t.s.Remove(ctx, "v"), block.ErrInUse, "Remove with two readers")
	t.must(one.in.Close(), "end one")
	t.must(one.cmd.Wait(), "wait for one")
	t.wants(t.s.Remove(ctx, "v"), block.ErrInUse, "Remove with one reader")
	t.wantVolume("v", append(Content(1, 4096), make([]byte, size-4096)...))
	two.kill()
	t.eventually(t.opts.Death, "Remove after the reader's death", func() error { return t.s.Remove(ctx, "v") })
}

// otherWriter checks that a volume has one writer among all processes, and that what a dead writer
// reported as durable is there.
func (t *suite) otherWriter() {
	ctx := t.Context()
	t.made("p", "", 256<<10, 0, Content(1, 256<<10))
	for round := range 2 * t.opts.Rounds {
		id := fmt.Sprintf("v%d", round)
		t.close(t.create(id, "p", 256<<10))
		p := t.start("write", id)
		if p == nil {
			return
		}
		passes := 0
		for ; passes < 1+round%3; passes++ {
			p.hear()
		}
		_, err := t.s.OpenWriter(ctx, id)
		t.wants(err, block.ErrInUse, "OpenWriter beside another's")
		t.wants(t.s.Commit(ctx, id), block.ErrInUse, "Commit beside a writer")
		t.wants(t.s.Remove(ctx, id), block.ErrInUse, "Remove beside a writer")
		time.Sleep(time.Duration(round%5) * time.Millisecond) // somewhere in a pass
		p.kill()
		var v block.Volume
		t.eventually(t.opts.Death, "OpenWriter after the writer's death", func() (err error) {
			v, err = t.s.OpenWriter(ctx, id)
			return err
		})
		b := make([]byte, 256<<10/3000*3000)
		if _, err := v.ReadAt(b, 0); err != nil {
			t.Fatalf("ReadAt: %v", err)
		}
		for i, got := range b {
			if int(got) < passes {
				t.Fatalf("round %d, at %d: pass %d, but %d were durable", round, i, got, passes)
			}
		}
		t.write(v, Content(5, 5000), 100)
		t.commit(id, v)
		r := t.open(id)
		t.wantBytes(r, Content(5, 5000), 100)
		t.close(r)
	}
}

// builderKilled checks that the next builder finishes the work of one that died.
func (t *suite) builderKilled() {
	p := t.start("build", "")
	if p == nil {
		return
	}
	p.kill()
	im := NewImage(t, 3, 3)
	rec, err := chain.Build(t.Context(), t.s, im.Layers, im.Source, nil)
	t.must(err, "Build")
	WantRecord(t, t.s, rec)
	t.wantWhole()
	got := sumOf(t, t.s, rec.Volume())
	for i := len(rec.Layers) - 1; i >= 0; i-- {
		t.must(t.s.Remove(t.Context(), rec.Layers[i].Volume), "Remove")
	}
	rec, err = chain.Build(t.Context(), t.s, im.Layers, im.Source, nil)
	t.must(err, "Build from nothing")
	if want := sumOf(t, t.s, rec.Volume()); got != want {
		t.Error("what was built over the dead builder's differs from what was built at once")
	}
}
