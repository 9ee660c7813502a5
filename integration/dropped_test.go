package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
)

// dropping is the configuration of a server that drops every layer as soon as it can.
const dropping = `version: 0.1
storage:
  rebuild: {cold_after: 1ms, again: 1ms, interval: 1s, least_rate: 0, share: 100}
`

// waitDropped settles the packs until so many layers are dropped.
func waitDropped(t *testing.T, s *slipway.Server, layers int64) {
	t.Helper()
	proc.Poll(t, 5*time.Minute, fmt.Sprintf("%d layers to be dropped", layers), func() bool {
		s.Run("settle", "--all")
		st := countRecipes(t, s)
		return st.Layers >= layers && st.Waiting == 0
	})
}

// TestDroppedClients checks that programs which people use pull dropped layers and run what they pulled.
func TestDroppedClients(t *testing.T) {
	s := slipway.Start(t, t.TempDir(), &slipway.Options{Config: dropping})
	im := imagetest.Hello(t)
	c := newCrane(t)
	ref := s.Addr + "/team/app:v1"
	c.run(t, "push", writeImage(t, &im.Bundle), ref)
	s.Converted()
	waitDropped(t, s, 1)
	t.Run("crane", func(t *testing.T) {
		c.run(t, "validate", "--remote", ref)
		c.run(t, "pull", "--format=oci", ref, c.layout(ref))
		if got := c.output(t, ref); got != im.Output {
			t.Errorf("the pulled image prints %q, want %q", got, im.Output)
		}
	})
	t.Run("containerd", func(t *testing.T) {
		d := daemon.StartContainerd(t)
		d.Run(t, "image", "pull", "--plain-http", ref)
		if got := d.Run(t, "run", "--rm", ref, "dropped"); got != im.Output {
			t.Errorf("the pulled image prints %q, want %q", got, im.Output)
		}
	})
	t.Run("skopeo", func(t *testing.T) {
		k := newSkopeo(t)
		k.pull(t, ref)
		if got := k.output(t, ref); got != im.Output {
			t.Errorf("the pulled image prints %q, want %q", got, im.Output)
		}
	})
	if out := s.Run("fsck"); out == "" {
		t.Error("fsck says nothing")
	}
}

// TestDroppedKill kills a server again and again while it drops layers and makes the parity of packs.
// Everything that was pushed must be there after each start, and after the loss of each pack.
func TestDroppedKill(t *testing.T) {
	s := slipway.Start(t, t.TempDir(), &slipway.Options{Config: dropping})
	c := newCrane(t)
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	const rounds = 5
	check := func(n int) {
		for i := range n {
			if _, err := s.Client.CheckImage(t.Context(), "team/app", fmt.Sprintf("v%d", i)); err != nil {
				t.Fatalf("after %d pushes: image %d: %v", n, i, err)
			}
		}
	}
	for i := range rounds {
		im := imagetest.NewImage("amd64", imagetest.NewLayer(imagetest.File{Name: "a", Data: []byte(noise(i, 400_000))}, imagetest.File{Name: "b", Data: []byte(noise(99, 300_000))}))
		c.run(t, "push", writeImage(t, &im.Bundle), fmt.Sprintf("%s/team/app:v%d", s.Addr, i))
		s.Converted()
		s.Run("settle", "--all")
		end := time.NewTimer(time.Duration(r.IntN(2500)) * time.Millisecond) // a pass comes every second
		<-end.C
		s.Kill()
		s.Restart()
		check(i + 1)
	}
	waitDropped(t, s, rounds)
	check(rounds)
	s.Run("fsck")
	for _, pack := range s.PackObjects() {
		path := filepath.Join(s.Root, "slipway", "gear", "packs", pack)
		if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) { // it was replaced, and deleted meanwhile
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		s.Kill()
		s.Restart()
		check(rounds)
	}
	s.Run("fsck", "--repair")
	s.Run("fsck")
	check(rounds)
}
