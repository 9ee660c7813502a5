package ctrnode_test

import (
	"context"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/lan"
	"example.org/slipway/integration/internal/slipway"
	"example.org/slipway/integration/internal/tool"
)

// TestNodes runs an image on nodes with and without an agent, in their own networks, and checks
// that nothing is left behind.
func TestNodes(t *testing.T) {
	tool.NeedRoot(t)
	for _, name := range []string{"containerd", "ctr", "runc"} {
		tool.Built(t, name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	net, err := lan.New(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := net.Close(); err != nil {
			t.Error(err)
		}
	}()
	dir, binary := tool.ShortTempDir(t), slipway.Binary(t)
	reg, err := ctrnode.StartRegistry(ctx, ctrnode.RegistryOptions{Dir: filepath.Join(dir, "registry"), Binary: binary, Addr: net.Addr + ":5000", TLS: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := reg.Stop(); err != nil {
			t.Error(err)
		}
	}()
	im := imagetest.Compose(runtime.GOARCH, map[string]any{"Entrypoint": []string{"/hello"}},
		[]imagetest.Layer{imagetest.NewLayer(imagetest.File{Name: "hello", Data: imagetest.HelloProgram(t), Mode: 0o755})})
	layout := filepath.Join(dir, "layout")
	im.WriteLayout(t, layout, "v1")
	tool.NewEnv(dir).Run(t, tool.Built(t, "crane"), "push", "--insecure", layout, reg.Addr+"/app:v1")
	for _, way := range []string{ctrnode.Plain, ctrnode.Gear} {
		t.Run(way, func(t *testing.T) {
			link, err := net.Join(ctx)
			if err != nil {
				t.Fatal(err)
			}
			n, err := ctrnode.Start(ctx, ctrnode.Options{Dir: filepath.Join(dir, way), Binary: binary, Way: way, Net: link, Registries: []string{reg.Addr}, CA: reg.CA})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := n.Stop(); err != nil {
					t.Error(err)
				}
			}()
			before, err := n.Leftovers()
			if err != nil {
				t.Fatal(err)
			}
			ref := reg.Addr + "/app:v1"
			for _, when := range []string{"first", "rebooted"} {
				if err := n.Pull(ctx, ref); err != nil {
					t.Fatal(err)
				}
				out, err := n.RunContainer(ctx, ref, when+"-"+way)
				if err != nil || !strings.Contains(out, "slipway-ok") {
					t.Fatalf("the container prints %q, error %v\n%s", out, err, n.Logs())
				}
				if when == "first" {
					if err := n.Reboot(ctx); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got, err := link.Received(); err != nil || got < 100_000 {
				t.Errorf("%d bytes came over the link, error %v", got, err)
			}
			if (n.PID(ctrnode.Worker) != 0) != (way == ctrnode.Gear) {
				t.Errorf("worker %d", n.PID(ctrnode.Worker))
			}
			if err := n.Remove(ctx, ref); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
				after, err := n.Leftovers()
				if err != nil {
					t.Fatal(err)
				}
				if after.Equal(before) {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("left over: %s; before: %s", after, before)
				}
			}
		})
	}
}
