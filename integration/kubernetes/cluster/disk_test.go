package cluster

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/integration/internal/ctrnode"
	"example.org/slipway/integration/internal/imagetest"
	"example.org/slipway/integration/internal/proc"
)

const (
	// A node's disk has diskMiB, and each of the images about imageMiB.
	diskMiB, imageMiB = 1200, 90
	// full has kubelet remove images when more than 55 % of the disk is used, until 35 % is. Only when
	// less than 25 % is left, it removes all that no pod uses, and then evicts pods.
	full = `imageGCHighThresholdPercent: 55
imageGCLowThresholdPercent: 35
imageMinimumGCAge: 1s
evictionHard: {nodefs.available: "25%", imagefs.available: "25%", memory.available: "50Mi"}
`
)

// once is a pod that reads its whole image and ends.
const once = `
apiVersion: v1
kind: Pod
metadata: {name: once%[1]d, namespace: open}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "REGISTRY/public/app:%[1]d", args: ["` + imagetest.Verify + ` && ` + imagetest.VerifyLarge + `"]}]
`

// writer is a pod that writes some MiB into its own file system, as far as its limit lets it.
const writer = `
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: open}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "REGISTRY/public/app:1", resources: {limits: {%s}}, args: ["dd if=/dev/zero of=/tmp/big bs=1048576 count=%d 2>/dev/null; exec sleep 1000000"]}]
`

// TestDiskPressure fills the disk of a node with images. kubelet has to know how much they take, and
// to free as much as it expects when it removes some. It evicts a pod that writes more than it may, and
// makes room for one that may.
func TestDiskPressure(t *testing.T) {
	c := bed{agent: onDemand, ways: []string{ctrnode.Gear}, diskBytes: diskMiB * mib, disk: full}.start(t)
	n := c.nodes[0]
	c.mark()
	c.namespace("open", "")
	c.push("public/app:1", imagetest.Summed(t, 1, files, fileBytes, 1))
	c.apply(fmt.Sprintf(watcher, 1))
	c.ready("open")

	last := 1
	for c.diskUsed() < 57 {
		last++
		c.readOnce(last)
	}
	before := c.diskUsed()
	c.sizes()
	// kubelet looks for images when it starts. Five minutes later it removes those that it knows.
	n.KillKubelet()
	c.check(n.StartKubelet(t.Context()))
	proc.Poll(t, 3*limit, "kubelet to remove images", func() bool { return c.diskUsed() <= 38 })
	left := c.images()
	t.Logf("kubelet removed images until %d %% of the disk were used instead of %d %%; it kept %d of %d", c.diskUsed(), before, left, last)
	if used := c.diskUsed(); used < 20 || left < 2 {
		t.Errorf("kubelet removed images until %d %% of the disk were used and %d images were left: it freed less than it expected with each", used, left)
	}
	// At its start, kubelet already wants space, and knows every image only since that moment:
	// it says that it freed nothing.
	for _, got := range strings.Split(c.kubectl("get", "events", "-A", "-o", `jsonpath={range .items[?(@.reason=='FreeDiskSpaceFailed')]}{.message}{"\n"}{end}`), "\n") {
		if got != "" && !strings.Contains(got, "freed 0 bytes") {
			t.Errorf("kubelet could not free what it wanted to: %s", got)
		}
	}
	c.read("open")

	c.apply(fmt.Sprintf(writer, "limited", "ephemeral-storage: 20Mi", 60))
	c.evicted("limited", "ephemeral local storage")
	c.apply(fmt.Sprintf(writer, "unlimited", "", diskMiB*6/10))
	proc.Poll(t, limit, "kubelet to remove all images that no pod uses", func() bool { return c.images() == 1 })
	if got := c.kubectl("-n", "open", "get", "pod", "unlimited", "-o", "jsonpath={.status.phase}"); got != "Running" {
		t.Errorf("a pod for which the removal of images made room is %s", got)
	}
	c.reads("-n", "open", "-l", "app=watchers")
	c.leaks("open")
}

// readOnce pushes an image, and has a pod read all of it.
func (c *cluster) readOnce(i int) {
	c.t.Helper()
	c.push(fmt.Sprintf("public/app:%d", i), imagetest.Summed(c.t, byte(i), files, fileBytes, imageMiB*mib-files*fileBytes))
	c.apply(fmt.Sprintf(once, i))
	name := fmt.Sprintf("once%d", i)
	c.kubectl("-n", "open", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+name, "--timeout", limit.String())
	c.kubectl("-n", "open", "delete", "pod", name, "--wait")
}

// diskUsed returns how much of the first node's disk is used, in percent, as kubelet counts.
func (c *cluster) diskUsed() int {
	c.t.Helper()
	var st unix.Statfs_t
	c.check(unix.Statfs(c.nodes[0].Dir, &st))
	return 100 - int(st.Bavail*100/st.Blocks)
}

// images returns how many of the test's images the first node has.
func (c *cluster) images() int {
	c.t.Helper()
	names, err := c.nodes[0].Ctr(c.t.Context(), "-n", "k8s.io", "images", "ls", "-q")
	c.check(err)
	return strings.Count(names, "/public/app:")
}

// evicted waits until kubelet has evicted a pod for a reason.
func (c *cluster) evicted(name, why string) {
	c.t.Helper()
	began := time.Now()
	var got string
	proc.Poll(c.t, limit, name+" to be evicted", func() bool {
		got = c.kubectl("-n", "open", "get", "pod", name, "-o", "jsonpath={.status.reason}: {.status.message}")
		return strings.HasPrefix(got, "Evicted")
	})
	if !strings.Contains(got, why) {
		c.t.Errorf("%s was evicted because %q, want %q", name, got, why)
	}
	c.t.Logf("%s was evicted after %s: %s", name, time.Since(began).Round(1e8), got)
}

// sizes compares what kubelet knows of the first node's images with what is on its disk.
func (c *cluster) sizes() {
	c.t.Helper()
	var summary struct {
		Node struct {
			Runtime struct {
				ImageFs struct{ AvailableBytes, CapacityBytes, UsedBytes int64 }
			}
		}
	}
	c.check(json.Unmarshal([]byte(c.kubectl("get", "--raw", "/api/v1/nodes/"+c.nodes[0].Name+"/proxy/stats/summary")), &summary))
	cache, err := c.nodes[0].CacheBytes()
	c.check(err)
	fs := summary.Node.Runtime.ImageFs
	c.t.Logf("kubelet knows of %d MiB of images, and the agent's cache has %d MiB; %d of %d MiB are left", fs.UsedBytes/mib, cache/mib, fs.AvailableBytes/mib, fs.CapacityBytes/mib)
	if fs.UsedBytes < cache*9/10 || fs.UsedBytes > cache*11/10+32*mib {
		c.t.Errorf("kubelet knows of %d bytes of images, the agent's cache has %d", fs.UsedBytes, cache)
	}
}
