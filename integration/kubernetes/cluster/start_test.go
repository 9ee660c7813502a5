package cluster

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/corpus"
	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/tasks"
)

// coldMiB is the size of the generated image, of which a small part is read.
const coldMiB = 150

// TestColdStart starts pods of large images on two nodes that do not have them, over links of 100
// Mbit/s. One node pulls to overlayfs. A pod is ready when it has done its work. SLIPWAY_CORPUS is a
// directory of real images, of which those of more than 100 MB are used in addition; SLIPWAY_TASKS names
// those that are, SERIES/VERSION, separated by commas.
func TestColdStart(t *testing.T) {
	c := newCluster(t, "", ctrnode.Gear, ctrnode.Plain)
	c.mark()
	c.namespace("open", "")
	works := []work{{"cold", []string{"/bin/sh", "-ec", imagetest.Verify}}}
	c.push("public/cold:1", imagetest.Summed(t, 1, files, fileBytes, coldMiB*mib))
	if dir := os.Getenv("SLIPWAY_CORPUS"); dir != "" {
		set, err := corpus.Read(dir)
		c.check(err)
		images := []*corpus.Image(set)
		if names := os.Getenv("SLIPWAY_TASKS"); names != "" {
			images, err = set.Choose(strings.Split(names, ","))
			c.check(err)
		}
		for _, im := range images {
			task, ok := tasks.First(im.Series)
			if !ok || task.Probe != nil || im.Bytes() < 100e6 {
				continue
			}
			c.pushCorpus(im)
			t.Logf("%s has %d MB", im, im.Bytes()/1e6)
			works = append(works, work{im.Series, task.Args})
		}
	}
	for _, l := range c.links {
		c.check(l.Shape(t.Context(), mbit))
	}
	for _, w := range works {
		name := w.image
		began := [2]time.Duration{}
		ready := [2]time.Duration{}
		for i, way := range []string{ctrnode.Gear, ctrnode.Plain} {
			began[i], ready[i] = c.cold(w, i)
			t.Logf("%s, %s: running after %s, ready after %s", name, way, began[i].Round(1e7), ready[i].Round(1e7))
		}
		t.Logf("%s: running %.1f times sooner, ready %.1f times sooner than with overlayfs", name,
			began[1].Seconds()/began[0].Seconds(), ready[1].Seconds()/ready[0].Seconds())
		// The work itself takes as long on both nodes. A busy machine makes it longer.
		if began[0] > began[1]/2 || ready[0] > ready[1] {
			t.Errorf("%s did not start sooner than with overlayfs", name)
		}
	}
	c.leaks("open")
}

// work is an image with what its container does: a shell, -ec and a script.
type work struct {
	image  string
	script []string
}

// cold runs a pod on a node and returns when its container ran and when it had done its work. The
// pod is deleted.
func (c *cluster) cold(w work, node int) (running, ready time.Duration) {
	c.t.Helper()
	image, script := w.image, append(w.script[:2:2], w.script[2]+"\n: >/tmp/ready\nexec sleep 1000000")
	pod, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]string{"name": image, "namespace": "open"},
		"spec": map[string]any{"nodeName": c.nodes[node].Name, "terminationGracePeriodSeconds": 0, "containers": []any{map[string]any{
			"name": "main", "image": "REGISTRY/public/" + image + ":1", "command": script,
			"readinessProbe": map[string]any{"periodSeconds": 1, "failureThreshold": 1, "exec": map[string]any{"command": []string{"sh", "-c", "test -e /tmp/ready"}}, "timeoutSeconds": 10},
		}}},
	})
	c.check(err)
	began := time.Now()
	c.apply(string(pod))
	c.kubectl("-n", "open", "wait", "--for=jsonpath={.status.phase}=Running", "pod/"+image, "--timeout", rolling.String())
	running = time.Since(began)
	c.kubectl("-n", "open", "wait", "--for=condition=Ready", "pod/"+image, "--timeout", rolling.String())
	ready = time.Since(began)
	c.kubectl("-n", "open", "delete", "pod", image, "--wait")
	return running, ready
}

// pushCorpus pushes a real image and waits until it is converted.
func (c *cluster) pushCorpus(im *corpus.Image) {
	c.t.Helper()
	root, repo := c.registry.Client.As("root", "secret"), "public/"+im.Series
	for _, d := range append(im.Layers[:len(im.Layers):len(im.Layers)], im.Config) {
		b, err := os.ReadFile(im.Blob(d.Digest))
		c.check(err)
		_, err = root.PushBlob(c.t.Context(), repo, b)
		c.check(err)
	}
	_, err := root.PutManifest(c.t.Context(), repo, "1", im.ManifestType, im.Manifest)
	c.check(err)
	c.registry.Converted()
}
