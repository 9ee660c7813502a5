package peers

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/node/gearfs/pace"
	"example.org/slipway/oci/peering"
)

// askerEnv holds the key and the address of a node that this program asks for a file instead of running
// tests.
const askerEnv = "SLIPWAY_TEST_ASKER"

// TestMain runs the process that TestBusyAsker pauses. It prints what asking a node for a file brings.
func TestMain(m *testing.M) {
	text, addr, asker := strings.Cut(os.Getenv(askerEnv), " ")
	if !asker {
		os.Exit(m.Run())
	}
	id, err := newIdentity()
	if err != nil {
		panic(err)
	}
	var key peering.Key
	if _, err := hex.Decode(key[:], []byte(text)); err != nil {
		panic(err)
	}
	p := newPeer(id, key, addr, new(pace.Metronome))
	f := &gear.File{Name: gear.Name{1}, Size: 1}
	bounds := limits{idle: askerIdle, all: time.Hour, coming: 1, promised: time.Hour}
	err = p.ask(context.Background(), "", present, bounds, []want{{piece{f.Name, whole}, f}}, func(int) {}, func(int, []byte, *frame) error { return nil })
	fmt.Print(err)
}

// askerIdle is how long that process waits for a node that sends nothing.
const askerIdle = time.Second

// TestBusyAsker takes all processors from a process that waits for another node, for longer than that
// node may send nothing. The process must not blame the node, which answers soon afterwards. A node that
// does not answer is blamed all the same.
func TestBusyAsker(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		pause, answers time.Duration // answers is after the pause
		want           string
	}{
		{"a node that answers in time", 0, 0, "<nil>"},
		{"a paused process", 3 * askerIdle, askerIdle / 4, "<nil>"},
		{"a node that does not answer", 0, time.Minute, errStall.Error()},
		{"a node that does not answer a paused process", 3 * askerIdle, time.Minute, errStall.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			asked := make(chan struct{})
			release := make(chan struct{})
			p := play(t, newExchange(t), func(w http.ResponseWriter, r *http.Request) {
				close(asked)
				select {
				case <-release:
					_, _ = w.Write(none.appendHeader(nil))
				case <-r.Context().Done():
				}
			})
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(slices.Clone(os.Environ()), askerEnv+"="+hex.EncodeToString(p.key[:])+" "+p.addr)
			var out strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			defer func() { _ = cmd.Process.Kill() }()
			<-asked
			if tt.pause > 0 {
				if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				<-time.After(tt.pause)
				if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
			}
			go func() {
				<-time.After(tt.answers)
				close(release)
			}()
			select {
			case err := <-ended:
				if err != nil || out.String() != tt.want {
					t.Errorf("the process prints %q, %v; want %q", out.String(), err, tt.want)
				}
			case <-time.After(30 * time.Second):
				t.Error("the process waits for 30 s")
			}
		})
	}
}
