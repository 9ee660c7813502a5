package cluster

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/slipway"
)

const (
	mib = 1 << 20
	// modelMiB is the size of the model; SLIPWAY_KUBERNETES_MODEL sets another size. Three times
	// its size is needed on the disk. Of a larger model, most is zeros, which need the disk only once.
	modelMiB = 1024
	// readers are the pods that share the model. Each reads parts of one MiB.
	readers, parts = 10, 32
	// adapters are models of adapterMiB that one pod has all of.
	adapters, adapterMiB = 10, 24
	// mbit is the rate of a node's link.
	mbit = 100
)

// reader is a pod with image volumes, of whose files it reads some parts.
const reader = `
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: open}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [%s]
  containers:
    - {name: main, image: "REGISTRY/public/app:1", args: ["(%s) | sha256sum; exec sleep 1000000"], volumeMounts: [%s]}
---`

// TestModels mounts a model of which a few per cent are read in ten pods, and ten small models in
// one pod. No pod may wait for more than it reads, or take more of the disk.
func TestModels(t *testing.T) {
	c := newCluster(t, onDemand, ctrnode.Gear)
	n := c.nodes[0]
	c.mark()
	c.push("public/app:1", imagetest.Summed(t, 1, files, fileBytes, 1))
	size := number(t, "SLIPWAY_KUBERNETES_MODEL", modelMiB)
	c.namespace("open", "")
	want := c.pushModel("llama", size, spread(size, parts))
	var lora [][]byte
	for i := range adapters {
		lora = append(lora, c.pushModel(fmt.Sprintf("lora%d", i), adapterMiB, spread(adapterMiB, 1))...)
	}
	c.check(c.links[0].Shape(t.Context(), mbit))

	// The first pod brings the program's image, so that only models come later.
	c.apply(fmt.Sprintf(reader, "first", "", "echo", ""))
	c.ready("open")
	touched := func(what string, bytes, more int64, pods string) {
		t.Helper()
		before, err := n.CacheBytes()
		c.check(err)
		began := time.Now()
		c.apply(pods)
		c.ready("open")
		took := time.Since(began)
		for _, p := range c.pods("-n", "open") {
			c.printed(&p, want, lora)
		}
		after, err := n.CacheBytes()
		c.check(err)
		t.Logf("%s: ready after %s, %.1f MiB of the disk for %.1f MiB read", what, took.Round(1e7), float64(after-before)/mib, float64(bytes)/mib)
		if after-before > bytes*105/100+more {
			t.Errorf("%s took %d bytes of the disk for %d bytes read", what, after-before, bytes)
		}
	}
	volume, mount := `{name: m0, image: {reference: "REGISTRY/public/llama:1"}}`, "{name: m0, mountPath: /m0}"
	pod := func(i int) string {
		return fmt.Sprintf(reader, fmt.Sprintf("llama%d", i), volume, dd(0, spread(size, parts)), mount)
	}
	touched(fmt.Sprintf("a pod with a model of %d MiB at %d Mbit/s", size, mbit), parts*mib, 0, pod(0))
	var more strings.Builder
	for i := 1; i < readers; i++ {
		more.WriteString(pod(i))
	}
	// Where several processes read a part at the same time, the kernel may read ahead into the
	// next one. The busier the machine, the more often they meet.
	touched(fmt.Sprintf("%d more pods with this model", readers-1), 0, parts*mib, more.String())

	var volumes, mounts, reads []string
	for i := range adapters {
		volumes = append(volumes, fmt.Sprintf(`{name: m%d, image: {reference: "REGISTRY/public/lora%[1]d:1"}}`, i))
		mounts = append(mounts, fmt.Sprintf("{name: m%d, mountPath: /m%[1]d}", i))
		reads = append(reads, dd(i, spread(adapterMiB, 1)))
	}
	touched(fmt.Sprintf("a pod with %d models of %d MiB", adapters, adapterMiB), adapters*mib, 0,
		fmt.Sprintf(reader, "lora", strings.Join(volumes, ", "), strings.Join(reads, "; "), strings.Join(mounts, ", ")))
	for _, name := range []string{"llama", "lora0"} {
		if way, said, err := n.Used(t.Context(), c.ref("public/"+name+":1")); err != nil || way != ctrnode.Gear {
			t.Errorf("%s came as %q, error %v: %s", name, way, err, said)
		}
	}
	c.leaks("open")
}

// spread returns places for some parts in a file, in MiB.
func spread(size, parts int) (at []int) {
	for i := range parts {
		at = append(at, i*size/parts+(size/parts-1)/2)
	}
	return at
}

// dd is the command that reads parts of the weights in volume i.
func dd(i int, at []int) string {
	return fmt.Sprintf("for s in%s; do dd if=/m%d/model.safetensors bs=%d skip=$s count=1 2>/dev/null; done", fmt.Sprint(" ", strings.Trim(fmt.Sprint(at), "[]")), i, mib)
}

// pushModel pushes a directory with random weights with slipway push-model, and returns the parts
// of the weights that pods will read. It leaves nothing on the disk.
func (c *cluster) pushModel(name string, sizeMiB int, at []int) (read [][]byte) {
	c.t.Helper()
	dir, err := os.MkdirTemp("", "model")
	c.check(err)
	defer os.RemoveAll(dir)
	login, model := filepath.Join(dir, "login"), filepath.Join(dir, "m")
	c.check(os.MkdirAll(model, 0o755))
	c.check(os.WriteFile(login, []byte("root:secret"), 0o600))
	c.check(os.WriteFile(filepath.Join(model, "config.json"), []byte("{}\n"), 0o644))
	f, err := os.Create(filepath.Join(model, "model.safetensors"))
	c.check(err)
	defer f.Close()
	c.check(writeModel(f, rand.NewChaCha8(sha256.Sum256([]byte(name))), sizeMiB, at))
	for _, i := range at {
		b := make([]byte, mib)
		_, err := f.ReadAt(b, int64(i)*mib)
		c.check(err)
		read = append(read, b)
	}
	began := time.Now()
	out, err := exec.CommandContext(c.t.Context(), slipway.Binary(c.t), "push-model", "--plain-http", "--credentials", login, model, c.ref("public/"+name+":1")).CombinedOutput()
	if err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	c.registry.Converted()
	used, err := exec.CommandContext(c.t.Context(), "du", "-sm", c.registry.Root).Output()
	c.check(err)
	c.t.Logf("%s of %d MiB was pushed and converted in %s; the registry has %s MiB", name, sizeMiB, time.Since(began).Round(1e8), strings.Fields(string(used))[0])
	return read
}

// writeModel writes random weights. In a model that is larger than modelMiB, these are only around
// the parts that pods will read, and the rest is a hole.
func writeModel(f *os.File, random io.Reader, sizeMiB int, at []int) error {
	if sizeMiB <= modelMiB {
		w := bufio.NewWriterSize(f, mib)
		_, err := io.CopyN(w, random, int64(sizeMiB)*mib)
		return errors.Join(err, w.Flush())
	}
	if err := f.Truncate(int64(sizeMiB) * mib); err != nil {
		return err
	}
	const around = 2
	for _, i := range at {
		from := max(0, i-around)
		size := int64(min(i+around+1, sizeMiB)-from) * mib
		if _, err := io.CopyN(io.NewOffsetWriter(f, int64(from)*mib), random, size); err != nil {
			return err
		}
	}
	return nil
}

// printed waits until a pod of TestModels has printed the sum of what it should read.
func (c *cluster) printed(p *pod, model, lora [][]byte) {
	c.t.Helper()
	h := sha256.New()
	switch {
	case p.Metadata.Name == "first":
		return
	case p.Metadata.Name == "lora":
		model = lora
	}
	for _, b := range model {
		h.Write(b)
	}
	want := fmt.Sprintf("%x", h.Sum(nil))
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		got, _, _ := strings.Cut(c.logs(p), " ")
		if got == want {
			return
		}
		if got != "" || time.Now().After(end) {
			c.t.Fatalf("%s prints %q, want %s", p.Metadata.Name, got, want)
		}
	}
}
