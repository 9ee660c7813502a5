package measure

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestOptions(t *testing.T) {
	parse := func(args string) (*Options, *flag.FlagSet, error) {
		o := &Options{}
		fl := flag.NewFlagSet("x", flag.ContinueOnError)
		fl.SetOutput(io.Discard)
		o.Add(fl, Defaults{Scenarios: "a,b", Rounds: 3, Dir: "everything", Quick: "less"})
		if err := fl.Parse(strings.Fields(args)); err != nil {
			return nil, nil, err
		}
		return o, fl, o.Validate(fl)
	}
	t.Setenv("SLIPWAY_BIN", "")
	for args, ok := range map[string]bool{"": false, "-bin x": true, "-from y": true, "-bin x -rounds 0": false, "-bin x y": false, "-unknown": false} {
		if _, _, err := parse(args); (err == nil) != ok {
			t.Errorf("%q: %v, want ok %v", args, err, ok)
		}
	}
	o, fl, err := parse("-bin /secret/x -quick -scenario b -dir /secret -out r")
	if err != nil || o.Rounds != 3 || o.Output.File != "r" {
		t.Errorf("options %+v, %v", o, err)
	}
	if got := Described(fl, "run", []string{"scenario", "rounds"}, []string{"quick"}); got != "run -quick -scenario b" {
		t.Errorf("described as %q", got)
	}
	if g := Given(fl); !g["dir"] || g["rounds"] {
		t.Errorf("given: %v", g)
	}
}

func TestBench(t *testing.T) {
	dir := t.TempDir()
	if _, err := (&Options{Binary: filepath.Join(dir, "missing"), Dir: dir}).Start("x"); err == nil {
		t.Error("a binary that is not there was accepted")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := (&Options{Binary: self, Dir: dir, Rounds: 2, Commit: "c"}).Start("x")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	b.Log = &log
	if fi, err := os.Stat(b.Dir); err != nil || fi.Mode().Perm() != 0o755 || !strings.HasPrefix(b.Dir, filepath.Join(dir, "slipway-x-")) {
		t.Errorf("directory %s: %v, %v", b.Dir, fi, err)
	}
	if one, two := b.NewDir(), b.NewDir(); one == two || filepath.Dir(one) != b.Dir {
		t.Errorf("new directories %s and %s", one, two)
	}
	if r := b.Since(time.Now().Add(-time.Second)); r.TookSec < 1 || r.Commit != "c" || r.Rounds != 2 || r.Date.IsZero() {
		t.Errorf("run %+v", r)
	}
	if args, err := b.Sample(dir); args != nil || err != nil || !strings.Contains(log.String(), "the real sample is not in "+dir) {
		t.Errorf("sample %v, %v; log %q", args, err, &log)
	}
	if err := os.WriteFile(filepath.Join(dir, "dal09_3d_get_uris.csv.zst"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if args, err := b.Sample(dir); err != nil || len(args) == 0 || args[len(args)-1] != "-o" {
		t.Errorf("sample %v, %v", args, err)
	}
	fault := errors.New("no")
	var ran []string
	scenario := func(name string, err error) Scenario[*Bench] {
		return Scenario[*Bench]{Name: name, Run: func(*Bench, context.Context) error { ran = append(ran, name); return err }}
	}
	err = RunAll(t.Context(), b, []Scenario[*Bench]{scenario("a", fault), scenario("b", nil)}, func(name string) { ran = append(ran, "before "+name) })
	if want := []string{"before a", "a", "before b", "b"}; !errors.Is(err, fault) || !slices.Equal(ran, want) {
		t.Errorf("ran %v, %v, want %v", ran, err, want)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(b.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the end: %v", err)
	}
}

// TestCrowd checks that all clients are connected before any of them asks, and that an incomplete
// answer is an error.
func TestCrowd(t *testing.T) {
	c := NewContent(1, 100_000)
	var ready atomic.Bool
	var early, reads atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/blob":
			reads.Add(1)
			if !ready.Load() {
				early.Add(1)
			}
			_, _ = io.Copy(w, c.Reader()) // the client reports errors
		case "/short":
			_, _ = io.CopyN(w, c.Reader(), 10)
		}
	}))
	defer s.Close()
	connected := false
	got, err := Crowd(t.Context(), 5, s.URL, "/blob", c.Size, func() error { connected = true; ready.Store(true); return nil })
	if err != nil || len(got) != 5 || !connected || early.Load() != 0 || reads.Load() != 5 {
		t.Errorf("%v, %v; connected %v, %d reads, %d of them early", got, err, connected, reads.Load(), early.Load())
	}
	for _, f := range got {
		if f.First <= 0 || f.All < f.First {
			t.Errorf("fetched %+v", f)
		}
	}
	if _, err := Crowd(t.Context(), 2, s.URL, "/short", c.Size, func() error { return nil }); err == nil {
		t.Error("10 bytes were taken for all")
	}
}
