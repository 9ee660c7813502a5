package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.org/slipway/integration/internal/daemon"
	"example.org/slipway/integration/internal/proc"
	"example.org/slipway/integration/internal/slipway"
)

// replayBed is a trace and the programs that replay it.
type replayBed struct {
	t     *testing.T
	bin   string
	dir   string
	store string
}

// newReplayBed imports a trace of pulls by several clients, with a push now and then and pings
// between. apart is the time between requests in milliseconds.
func newReplayBed(t *testing.T, rounds, apart int) *replayBed {
	t.Helper()
	b := &replayBed{t: t, bin: slipway.Binary(t), dir: t.TempDir()}
	b.store = filepath.Join(b.dir, "store")
	var log strings.Builder
	n := 0
	add := func(client, method, uri string, status, size int) {
		at := time.Date(2017, 6, 20, 1, 0, 0, 0, time.UTC).Add(time.Duration(n*apart) * time.Millisecond)
		n++
		fmt.Fprintf(&log, `{"host":"h1","http.request.duration":0.01,"http.request.method":%q,"http.request.remoteaddr":%q,"http.request.uri":%q,"http.request.useragent":"docker/17.03","http.response.status":%d,"http.response.written":%d,"id":"%010x","timestamp":%q}`+"\n",
			method, client, uri, status, size, n, at.Format("2006-01-02T15:04:05.000Z"))
	}
	for i := range rounds {
		client := fmt.Sprintf("c%07d", i%9)
		repo := fmt.Sprintf("v2/aaaa%04d/bbbb0001", i%5)
		add(client, "GET", "v2", 200, 2)
		add(client, "GET", repo+"/manifests/817c8a39", 200, 900)
		for l := range 3 {
			add(client, "GET", fmt.Sprintf("%s/blobs/dd%02d%04d", repo, l, i%7), 200, 1000+5000*l)
		}
	}
	path := filepath.Join(b.dir, "trace.log")
	if err := os.WriteFile(path, []byte(log.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	b.run(0, "import", path, "--format", "trace", "--zone", "dal", "-o", b.store)
	return b
}

// run runs slipway trace and returns what it printed.
func (b *replayBed) run(status int, args ...string) string {
	b.t.Helper()
	out, err := exec.Command(b.bin, append([]string{"trace"}, args...)...).CombinedOutput()
	got := 0
	if err != nil {
		exit, ok := err.(*exec.ExitError)
		if !ok {
			b.t.Fatal(err)
		}
		got = exit.ExitCode()
	}
	if got != status {
		b.t.Fatalf("slipway trace %s ended with %d, want %d:\n%s", strings.Join(args, " "), got, status, out)
	}
	return string(out)
}

// replaySummary holds the fields of a summary that the tests use.
type replaySummary struct {
	Requests    int64
	Outcomes    map[string]int64
	Complete    bool
	LostWorkers int
	Problems    []string
}

func (b *replayBed) summary(dir string) (s replaySummary) {
	b.t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		b.t.Fatal(err)
	}
	return s
}

// slack is the value of --max-lag: on a shared machine the lag is not under test.
const slack = "1m"

// TestReplayComparesRegistries replays to two registries of different kinds in one command.
func TestReplayComparesRegistries(t *testing.T) {
	b := newReplayBed(t, 40, 2)
	targets := []string{"--target", "slipway=http://" + slipway.Start(t, t.TempDir(), nil).Addr,
		"--target", "other=http://" + daemon.StartDistribution(t)}
	for _, level := range []string{"L0", "L1", "L2"} {
		out := filepath.Join(b.dir, level)
		text := b.run(0, append([]string{"replay", b.store, "-o", out, "--each", "--level", level, "--max-lag", slack,
			"--repo-prefix", strings.ToLower(level) + "/"}, targets...)...)
		if !strings.Contains(text, "other against slipway") {
			t.Errorf("%s: no comparison:\n%s", level, text)
		}
		for _, name := range []string{"slipway", "other"} {
			if s := b.summary(filepath.Join(out, name)); s.Outcomes["ok"] != s.Requests || s.Requests < 120 || !s.Complete {
				t.Errorf("%s to %s: %+v", level, name, s)
			}
		}
		page, err := os.ReadFile(filepath.Join(out, "report.html"))
		if err != nil || strings.Count(string(page), "<svg") != 7 {
			t.Errorf("%s: report of %d bytes, %v", level, len(page), err)
		}
	}
	dir := filepath.Join(b.dir, "L1", "slipway")
	for _, format := range []string{"text", "json", "csv", "junit", "html"} {
		if text := b.run(0, "report", dir, "--format", format); text == "" {
			t.Errorf("empty report as %s", format)
		}
	}
	b.run(0, "compare", dir, filepath.Join(b.dir, "L1", "other"), "--max-regression", "errors=1%")
}

// TestReplayResumesAfterKill kills the coordinator and resumes the replay.
func TestReplayResumesAfterKill(t *testing.T) {
	b := newReplayBed(t, 200, 8) // 8 s
	s := slipway.Start(t, t.TempDir(), nil)
	out := filepath.Join(b.dir, "out")
	args := []string{"trace", "replay", b.store, "-o", out, "--target", "http://" + s.Addr, "--max-lag", slack, "--checkpoint", "200ms"}
	p := proc.Start(t, exec.Command(b.bin, args...), filepath.Join(b.dir, "log"))
	proc.Poll(t, time.Minute, "some results", func() bool {
		parts, _ := filepath.Glob(filepath.Join(out, "requests-*.parquet"))
		return len(parts) >= 3
	})
	p.Kill()
	if text := b.run(4, "report", out); !strings.Contains(text, "did not end") { // a run without a bound for its lag
		t.Errorf("report of the killed run:\n%s", text)
	}
	b.run(0, append(args[1:], "--resume")...)
	if got := b.summary(out); got.Requests != 1000 || got.Outcomes["ok"] != 1000 || !got.Complete {
		t.Errorf("after going on: %+v, want each of the 1000 requests once", got)
	}
}

// TestReplayWithoutAWorker kills one of two workers.
func TestReplayWithoutAWorker(t *testing.T) {
	b := newReplayBed(t, 160, 5) // 4 s
	s := slipway.Start(t, t.TempDir(), nil)
	secret := filepath.Join(b.dir, "secret")
	if err := os.WriteFile(secret, []byte("open sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var addrs []string
	var workers []*proc.Process
	for i := range 2 {
		addr := slipway.FreeAddr(t)
		log := filepath.Join(b.dir, fmt.Sprint("worker", i))
		p := proc.Start(t, exec.Command(b.bin, "trace", "worker", "--listen", addr, "--secret-file", secret), log)
		proc.Poll(t, time.Minute, "the worker", func() bool { return strings.Contains(p.Log(4096), "listens") })
		addrs, workers = append(addrs, addr), append(workers, p)
	}
	out := filepath.Join(b.dir, "out")
	p := proc.Start(t, exec.Command(b.bin, "trace", "replay", b.store, "-o", out, "--target", "http://"+s.Addr, "--max-lag", slack,
		"--checkpoint", "200ms", "--workers", strings.Join(addrs, ","), "--secret-file", secret), filepath.Join(b.dir, "log"))
	proc.Poll(t, time.Minute, "some results", func() bool {
		parts, _ := filepath.Glob(filepath.Join(out, "requests-*.parquet"))
		return len(parts) >= 2
	})
	workers[1].Kill()
	select {
	case <-p.Exited():
	case <-time.After(time.Minute):
		t.Fatal("the replay does not end")
	}
	got := b.summary(out)
	if got.Requests != 800 || got.Outcomes["ok"]+got.Outcomes["lost"] != 800 || got.LostWorkers != 1 || got.Outcomes["lost"] > 80 {
		t.Errorf("%+v; want 800 requests, of which those under way are lost\n%s", got, p.Log(4096))
	}
	b.run(1, "worker", "--listen", "0.0.0.0:0") // everybody could have it send what they like
}
