package agent_test

import (
	"archive/tar"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/node"
	"example.org/slipway/integration/internal/slipway"
)

const (
	// idleFiles is the number of files of an image in TestIdleMemory: as many as a typical image of
	// a programming language has.
	idleFiles = 13_000
	// idleLimit bounds the memory of keeper and worker together, in bytes.
	idleLimit = 40e6
)

// TestIdleMemory checks that an agent with nothing to do uses little memory, however many images it
// knows, and that a mounted image does too. SLIPWAY_AGENT_IMAGES is the number of images.
func TestIdleMemory(t *testing.T) {
	images := 5
	if v := os.Getenv("SLIPWAY_AGENT_IMAGES"); v != "" {
		var err error
		if images, err = strconv.Atoi(v); err != nil || images < 1 {
			t.Fatalf("SLIPWAY_AGENT_IMAGES=%q is not a number of images", v)
		}
	}
	s := slipway.Start(t, t.TempDir(), nil)
	a, c := withContainerd(t, quiet+"profiles: {duration: 2s}\n")
	a.Allow(time.Duration(images) * 10 * time.Second)
	var refs []string
	for i := range images {
		refs = append(refs, push(t, s, fmt.Sprintf("team/app%d:v1", i), manyFiles(i)))
	}
	before := memory(t, a)
	for _, ref := range refs {
		pull(t, c, ref)
	}
	pulled := settled(t, a)
	for _, ref := range refs {
		a.Mount(ref)
	}
	mounted := settled(t, a)
	each := float64(mounted.resident-pulled.resident) / float64(images)
	t.Logf("keeper and worker take %s before, %s with %d images of %d files each, %s with all mounted: %.0f kB for each", before, pulled, images, idleFiles, mounted, each/1e3)
	if pulled.resident > idleLimit {
		t.Errorf("%s with %d images, want %.0f MB at most", pulled, images, idleLimit/1e6)
	}
}

// manyFiles returns an image of idleFiles small files that no other image has.
func manyFiles(seed int) *imagetest.Bundle {
	rng := rand.New(rand.NewPCG(uint64(seed), 3))
	a := new(imagetest.Archive).Dir("./")
	for i := range idleFiles {
		if i%100 == 0 {
			a.Dir(fmt.Sprintf("d%d/", i/100))
		}
		a.Add(tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("d%d/file-%d.py", i/100, i), Mode: 0o644}, fmt.Appendf(nil, "%x", rng.Uint64()))
	}
	return imagetest.Compose(runtime.GOARCH, map[string]any{"Cmd": []string{"/bin/none"}}, []imagetest.Layer{a.Layer()})
}

// usage is the memory of processes in bytes: in total, and the part that no file backs.
type usage struct{ resident, anonymous int64 }

// String formats the usage in MB.
func (u usage) String() string {
	return fmt.Sprintf("%.1f MB (%.1f anonymous)", float64(u.resident)/1e6, float64(u.anonymous)/1e6)
}

// settled returns the agent's memory after it has had time to give back what it used. It waits some
// seconds to see whether more is given back.
func settled(t *testing.T, a *node.Agent) (least usage) {
	t.Helper()
	for range 10 {
		time.Sleep(time.Second)
		if u := memory(t, a); least.resident == 0 || u.resident < least.resident {
			least = u
		}
	}
	return least
}

// memory returns the memory of keeper and worker.
func memory(t *testing.T, a *node.Agent) (u usage) {
	t.Helper()
	for _, pid := range []int{a.Process.Pid(), a.Worker()} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			name, value, _ := strings.Cut(line, ":")
			n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64) // other lines are of no matter
			switch name {
			case "VmRSS":
				u.resident += n << 10
			case "RssAnon":
				u.anonymous += n << 10
			}
		}
	}
	return u
}
