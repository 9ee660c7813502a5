package file_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/volume/block"
	"example.org/slipway/volume/blocktest"
	"example.org/slipway/volume/file"
)

// TestKilled checks that everything a killed writer was told is written is there, flushed or not.
func TestKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, nil)
	committed(t, s, "p", "", blocktest.Content(9, 1<<20))
	must(t, created(t, s, "w", "p", 1<<20).Close())
	for round := range killRounds(4) {
		cmd, out := child(t, "write:"+dir)
		last := byte(0)
		b := make([]byte, 1)
		for range 20 + round*13%50 {
			if _, err := out.Read(b); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			last = b[0]
		}
		must(t, cmd.Process.Kill())
		for {
			if n, err := out.Read(b); n == 0 || err != nil {
				break
			}
			last = b[0]
		}
		_ = cmd.Wait()
		w, err := s.OpenWriter(t.Context(), "w")
		must(t, err)
		checkKilled(t, w, round, last)
		must(t, w.Close())
	}
	must(t, s.Commit(t.Context(), "w"))
}

// TestKilledAnywhere kills a process at any point in the life of volumes. What is complete must be
// right, and everything must be removable.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, nil)
	for round := range killRounds(8) {
		cmd, _ := child(t, "live:"+dir)
		time.Sleep(time.Duration(10+round*37%150) * time.Millisecond) // at any point
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		infos, err := s.List(t.Context(), "")
		must(t, err)
		for _, i := range infos {
			if !i.Committed {
				continue
			}
			v, err := s.Open(t.Context(), i.ID)
			must(t, err)
			want := lived(i.Parent != "")
			got := make([]byte, len(want))
			if _, err := v.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
				t.Errorf("round %d: %s has other bytes, or %v", round, i.ID, err)
			}
			must(t, v.Close())
		}
		for _, i := range infos { // children before parents, by name
			must(t, s.Remove(t.Context(), i.ID))
		}
		if round%2 == 0 {
			must(t, s.Remove(t.Context(), "none"))
			continue
		}
		again, err := file.Open(dir, nil) // removes what removals left
		must(t, err)
		must(t, again.Close())
		for _, d := range []string{"volumes", "tmp"} {
			if left, err := os.ReadDir(filepath.Join(dir, d)); err != nil || len(left) > 0 {
				t.Errorf("round %d: left: %v, %v", round, left, err)
			}
		}
		if left, err := os.ReadDir(filepath.Join(dir, "locks")); err != nil || len(left) != 1 {
			t.Errorf("round %d: left: %v, %v", round, left, err)
		}
	}
}

// lived returns the content of the volumes of live.
func lived(clone bool) []byte {
	b := blocktest.Content(1, 64<<10)
	if clone {
		copy(b[3000:], blocktest.Content(2, 10_000))
	}
	return b
}

// live is a child of TestKilledAnywhere. It makes and removes volumes.
func live(dir string) error {
	s, err := file.Open(dir, nil)
	for err == nil {
		err = errors.Join(
			makeFull(s, "p", "", 0, lived(false)),
			makeFull(s, "a", "p", 3000, blocktest.Content(2, 10_000)),
			s.Remove(mainContext, "a"),
			s.Remove(mainContext, "p"),
		)
	}
	return err
}

func makeFull(s *file.Store, id, parent string, off int64, b []byte) error {
	v, err := s.Create(mainContext, id, parent, 64<<10)
	if err != nil {
		return err
	}
	_, err = v.WriteAt(b, off)
	return errors.Join(err, v.Close(), s.Commit(mainContext, id))
}

// killRounds returns how often a child is killed.
func killRounds(n int) int {
	if os.Getenv("SLIPWAY_KILL_ROUNDS") != "" {
		return 50 * n
	}
	return n
}

// child starts this test binary as a process that will be killed.
func child(t *testing.T, do string) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), killedEnv+"="+do)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	return cmd, out
}

// killedEnv holds what a child does and in which directory.
const killedEnv = "SLIPWAY_FILE_KILLED"

// untilKilled does the work of a child. It does not end by itself.
func untilKilled(text string) error {
	if dir, ok := strings.CutPrefix(text, "live:"); ok {
		return live(dir)
	}
	return writeUntilKilled(strings.TrimPrefix(text, "write:"))
}

// killedAt returns where write n of a child goes: 5,000 bytes of value n, at places that share
// blocks.
func killedAt(n byte) int64 { return int64(n) * 2500 }

// writeUntilKilled is the child of TestKilled.
func writeUntilKilled(dir string) error {
	s, err := file.Open(dir, nil)
	if err != nil {
		return err
	}
	w, err := s.OpenWriter(mainContext, "w")
	if err != nil {
		return err
	}
	if err := w.Zero(0, w.Size()); err != nil {
		return err
	}
	for n := byte(1); ; n++ {
		if n == 0 {
			n = 1
		}
		if _, err := w.WriteAt(bytes.Repeat([]byte{n}, 5000), killedAt(n)); err != nil {
			return err
		}
		if _, err := os.Stdout.Write([]byte{n}); err != nil {
			return err
		}
	}
}

// checkKilled checks that the last write of a child is there, and the earlier ones as far as they
// were not overwritten.
func checkKilled(t *testing.T, w block.Volume, round int, last byte) {
	t.Helper()
	for i := range int(last) {
		n := byte(i + 1)
		want := 2500 // the next write overwrote the rest
		if n == last {
			want = 5000
		}
		got := make([]byte, want)
		_, err := w.ReadAt(got, killedAt(n))
		must(t, err)
		next := n + 1 // may have been written but not reported
		for i, b := range got {
			if b != n && !(n == last && i >= 2500 && b == next) {
				t.Fatalf("round %d: write %d of %d, byte %d: got %d", round, n, last, i, b)
			}
		}
	}
}
