package logs_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs"
	"example.org/slipway/workload/trace/logs/formats"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// combined returns a line of Combined Log Format for a client.
func combined(client string) string {
	return client + ` - - [12/Jun/2024:09:45:01 +0000] "GET /v2/team/app/manifests/v1 HTTP/1.1" 200 1834 "-" "containerd/1.7.18"`
}

// TestClients reads everything that may stand in the place of a client, and refuses the
// rest.
func TestClients(t *testing.T) {
	for field, want := range map[string]string{
		"203.0.113.7": "203.0.113.7", "203.0.113.7:40312": "203.0.113.7", "2001:db8::7": "2001:db8::7", "[2001:db8::7]:40312": "2001:db8::7",
		"[2001:db8::7]": "2001:db8::7", "2001:DB8:0::7": "2001:db8::7", "::ffff:203.0.113.7": "203.0.113.7", "[::ffff:203.0.113.7]:1": "203.0.113.7",
		"fe80::1%eth0": "fe80::1%eth0", "::1": "::1", "203.0.113.7, 10.0.0.12": "203.0.113.7", "203.0.113.7,10.0.0.12": "203.0.113.7",
		`"203.0.113.7, 10.0.0.12"`: "203.0.113.7", "unknown, 203.0.113.7": "203.0.113.7", "-, 203.0.113.7": "203.0.113.7",
		"2001:db8::7, 10.0.0.12, 10.0.0.13": "2001:db8::7", "203.0.113.7:40312, 10.0.0.12:80": "203.0.113.7",
		"2001:db8:0:1:2:3:4:7:40312": "2001:db8:0:1:2:3:4:7", "2001:db8::7:40312": "2001:db8::7",
		"node7.example.com": "node7.example.com", "node7.example.com:40312": "node7.example.com", "1c6fe6d6": "1c6fe6d6", "-": "", "unix:": "",
		"registry.example.com:443 203.0.113.7": "203.0.113.7", "registry.example.com 203.0.113.7": "203.0.113.7",
		"registry-0 registry 203.0.113.7": "203.0.113.7", "10.0.0.12 203.0.113.7": "203.0.113.7", `{app="registry"} 203.0.113.7`: "203.0.113.7",
	} {
		in := logs.NewInput(nil)
		got := read(t, in, combined(field)+"\n")
		if len(got) != 1 || got[0].RemoteAddr != want {
			t.Errorf("%s: got %+v, want the client %q; skipped %+v", field, got, want, in.Skipped())
		}
	}
	for _, field := range []string{"203.0.113", "203.0.113.777", "0.0.113.7", "203", "2024-06-12T09:45:01Z", "203.0.113.7:x", "[2001:db8::7", "2001:db8::g",
		"node7.example.com:port", "!", ",", "registry-0 registry", "", ".113.7", "203.0.113.7;10.0.0.12"} {
		in := logs.NewInput(&logs.InputOptions{Format: trace.FormatCLF})
		if got := read(t, in, combined(field)+"\n"); len(got) != 0 || count(in) != 1 {
			t.Errorf("%q is a client: %+v", field, got)
		}
	}
}

// TestBelowPaths reads requests to registries that are below a path, by a proxy or by a setting of
// their own. A repository may have a segment that is called v2.
func TestBelowPaths(t *testing.T) {
	const path = "/v2/team/app/manifests/v1"
	for target, want := range map[string]string{
		path: path, "/registry" + path: path, "/a/b/c" + path + "?ns=docker.io": path + "?ns=docker.io", "https://r.example.com/registry" + path: path,
		"/v2/team/v2/app/manifests/v1": "/v2/team/v2/app/manifests/v1", "/x/v2/team/v2/app/manifests/v1": "/v2/team/v2/app/manifests/v1",
		"/registry/v2/": "/v2/", "/registry/v2/?a=/v2/b": "/v2/?a=/v2/b",
		"/repository/docker/v2/app/manifests/v1": "/v2/docker/app/manifests/v1", "/search?q=/v2/x": "/search?q=/v2/x", "/v3/app": "/v3/app",
	} {
		in := logs.NewInput(&logs.InputOptions{Format: trace.FormatCLF})
		got := read(t, in, strings.Replace(combined("203.0.113.7"), path, target, 1)+"\n")
		if len(got) != 1 || got[0].URI != want {
			t.Errorf("%s: got %+v, want the URI %s; skipped %+v", target, got, want, in.Skipped())
		}
	}
}

// TestUnbracketed reads the clients of load balancers, which write IPv6 addresses with a port and
// without brackets. A port of few digits could be a part of the address.
func TestUnbracketed(t *testing.T) {
	for _, title := range []string{"alb", "haproxy"} {
		for _, port := range []string{"1", "80", "443", "4031", "40312"} {
			in := docsInput("")
			got := read(t, in, strings.Replace(example(t, title), "203.0.113.7:40312", "2001:db8::7:"+port, 1)+"\n")
			if len(got) != 1 || got[0].RemoteAddr != "2001:db8::7" {
				t.Errorf("%s, port %s: got %+v, skipped %+v", title, port, got, in.Skipped())
			}
		}
	}
}

// TestLogfmt reads Distribution's log as it is with other versions, formatters and collectors.
func TestLogfmt(t *testing.T) {
	text := example(t, "distribution, text")
	_, fields, _ := strings.Cut(text, `msg="response completed" `)
	const agent = `http.request.useragent="containerd/1.7.18"`
	for name, tc := range map[string]struct{ line, agent string }{
		"no user agent":     {strings.Replace(text, agent, "http.request.useragent=", 1), ""},
		"empty user agent":  {strings.Replace(text, agent, `http.request.useragent=""`, 1), ""},
		"empty at the end":  {text + " vars.name=", "containerd/1.7.18"},
		"odd escapes":       {strings.Replace(text, agent, `http.request.useragent="docker/1.13.1 UpstreamClient(Docker-Client/1.13.1 \(linux\))"`, 1), "docker/1.13.1 UpstreamClient(Docker-Client/1.13.1 (linux))"},
		"usual escapes":     {strings.Replace(text, agent, `http.request.useragent="UpstreamClient(a \\(linux\\)) \"b\""`, 1), `UpstreamClient(a \(linux\)) "b"`},
		"names before":      {"registry-5c9f7b5d8-x2x7k registry " + text, "containerd/1.7.18"},
		"a terminal":        {"2024-06-12T09:45:02Z INFO[0012] response completed                            " + fields, "containerd/1.7.18"},
		"a coloured line":   {"2024-06-12T09:45:02Z \x1b[36mINFO\x1b[0m[0012] response completed        \x1b[36mgo.version\x1b[0m=go1.22.4 " + fields, "containerd/1.7.18"},
		"a monotonic clock": {"[12345.678901] node1 registry[1042]: " + text, "containerd/1.7.18"},
	} {
		want := titled{title: "distribution"}.told()
		want.UserAgent = tc.agent
		in := docsInput("")
		got := read(t, in, tc.line+"\n")
		if len(got) != 1 {
			t.Errorf("%s: %d records, skipped %+v", name, len(got), in.Skipped())
			continue
		}
		if diff := cmp.Diff(want, plain(got[0])); diff != "" {
			t.Errorf("%s: the record differs (-want +got):\n%s", name, diff)
		}
	}
}

// TestRequestTimes distinguishes $request_time from other numbers after the user agent.
func TestRequestTimes(t *testing.T) {
	for after, want := range map[string]time.Duration{
		"": trace.Unknown, `"2.31"`: trace.Unknown, "2.31": trace.Unknown, `"-"`: trace.Unknown, "411": trace.Unknown, `urt=0.998`: trace.Unknown,
		"1.000": time.Second, `"1.000"`: time.Second, "rt=1.000": time.Second, `rt="1.000"`: time.Second, "request_time:1.000": trace.Unknown,
		"2.31 1.000": time.Second, `"203.0.113.7" 1.000 0.998`: time.Second, "(1.000 411 0.998)": time.Second, `uct="0.000" uht="0.001" rt=1.000`: time.Second,
	} {
		in := logs.NewInput(nil)
		got := read(t, in, combined("203.0.113.7")+" "+after+"\n")
		if len(got) != 1 || got[0].Duration != want {
			t.Errorf("%s: got %+v, want the duration %v", after, got, want)
		}
	}
}

// TestPieces joins lines that CRI and Docker split, from two streams at once.
func TestPieces(t *testing.T) {
	long := strings.Replace(combined("203.0.113.7"), "containerd", strings.Repeat("x", 40<<10), 1)
	var cri, docker strings.Builder
	for rest := long; rest != ""; {
		n := min(len(rest), 16<<10)
		tag, end := "P", ""
		if n == len(rest) {
			tag, end = "F", "\n"
		}
		fmt.Fprintf(&cri, "2024-06-12T09:45:02Z stdout %s %s\n2024-06-12T09:45:02Z stderr F between\n", tag, rest[:n])
		quoted, _ := json.Marshal(rest[:n] + end)
		fmt.Fprintf(&docker, `{"log":%s,"stream":"stdout","time":"2024-06-12T09:45:02Z"}`+"\n", quoted)
		rest = rest[n:]
	}
	for name, input := range map[string]string{"CRI": cri.String(), "Docker": docker.String()} {
		got := read(t, logs.NewInput(nil), input)
		if len(got) != 1 || len(got[0].UserAgent) < 40<<10 || got[0].RemoteAddr != "203.0.113.7" {
			t.Errorf("%s: read %d records", name, len(got))
		}
	}
}

// example returns the line of the docs that has the title.
func example(t *testing.T, title string) string {
	t.Helper()
	for _, x := range fromDocs(t, "A line of each") {
		if x.title == title {
			return x.text
		}
	}
	t.Fatalf("docs/trace.md has no line of %s", title)
	return ""
}

// TestOneLogTwice reads logs of containers in which two programs, or two parts of one
// program, log the same requests in either order.
func TestOneLogTwice(t *testing.T) {
	startup := `time="2024-06-12T09:44:00Z" level=info msg="listening on [::]:5000" go.version=go1.22.4` + "\n"
	for name, lines := range map[string][2]string{
		"Distribution, text": {example(t, "distribution, text"), combined("203.0.113.7")},
		"Distribution, JSON": {example(t, "distribution, JSON"), combined("203.0.113.7")},
		"Quay": {example(t, "quay"),
			"gunicorn-registry stdout | 2024-06-12 09:45:02,420 [243] [INFO] [gunicorn.access] " + combined("203.0.113.7")},
		"Harbor": {example(t, "harbor"), "Jun 12 09:45:02 172.18.0.1 registry[1]: " + example(t, "distribution, text")},
	} {
		for _, input := range []string{lines[0] + "\n" + lines[1] + "\n", lines[1] + "\n" + lines[0] + "\n", startup + lines[1] + "\n" + lines[0] + "\n"} {
			in := docsInput("")
			if got := read(t, in, input); len(got) != 1 || got[0].Duration != time.Second {
				t.Errorf("%s: %d records of one request: %+v", name, len(got), got)
			}
		}
	}
}

// TestChoose reads Harbor's log directory, in which all parts log the same requests.
func TestChoose(t *testing.T) {
	contents := map[string]string{
		"proxy.log": example(t, "harbor"), "proxy.log.1.gz": string(compress(t, "gz", []byte(example(t, "harbor")+"\n"))),
		"core.log": example(t, "harbor-core"), "registry.log": "Jun 12 09:45:02 172.18.0.1 registry[7]: " + example(t, "distribution, text"),
		"portal.log": "Jun 12 09:45:02 172.18.0.1 portal[7]: " + combined("172.18.0.9"), "redis.log": "Jun 12 09:45:02 172.18.0.1 redis[7]: ready",
	}
	for name, tc := range map[string]struct{ has, want []string }{
		"all":          {[]string{"core.log", "portal.log", "proxy.log", "proxy.log.1.gz", "redis.log", "registry.log"}, []string{"proxy.log", "proxy.log.1.gz", "redis.log"}},
		"no proxy":     {[]string{"core.log", "redis.log", "registry.log"}, []string{"core.log", "redis.log"}},
		"registry":     {[]string{"redis.log", "registry.log"}, []string{"redis.log", "registry.log"}},
		"rotated only": {[]string{"proxy.log.1.gz", "registry.log"}, []string{"proxy.log.1.gz"}},
	} {
		dir := t.TempDir()
		elsewhere := filepath.Join(dir, "elsewhere", "registry.log")
		if err := os.MkdirAll(filepath.Dir(elsewhere), 0o700); err != nil {
			t.Fatal(err)
		}
		want := []string{elsewhere}
		files := []string{elsewhere}
		for _, f := range append(tc.has, "elsewhere/registry.log") {
			if err := os.WriteFile(filepath.Join(dir, f), []byte(contents[filepath.Base(f)]+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range tc.has {
			files = append(files, filepath.Join(dir, f))
		}
		for _, f := range tc.want {
			want = append(want, filepath.Join(dir, f))
		}
		in := docsInput("")
		if diff := cmp.Diff(want, in.Choose(context.Background(), files)); diff != "" {
			t.Errorf("%s: files differ (-want +got):\n%s", name, diff)
		}
		if n := int(count(in)); n != len(files)-len(want) {
			t.Errorf("%s: %d files are said to be left out of %d", name, n, len(files)-len(want))
		}
		if got := docsInput(formats.Distribution).Choose(context.Background(), files); len(got) != len(files) {
			t.Errorf("%s: with a format %d files of %d are read", name, len(got), len(files))
		}
	}
}

// TestChooseBehindNoise reads Harbor's log directory in which the first lines of each log tell of
// something else than requests.
func TestChooseBehindNoise(t *testing.T) {
	const noise = 3000 // lines, which are more bytes than are read to detect a compression
	dir := t.TempDir()
	for name, line := range map[string]string{
		"proxy.log": example(t, "harbor"), "core.log": example(t, "harbor-core"),
		"registry.log": "Jun 12 09:45:02 172.18.0.1 registry[7]: " + example(t, "distribution, text"),
	} {
		other := "Jun 12 09:45:01 172.18.0.1 part[7]: 2024-06-12T09:45:01Z [INFO] [/controller/job.go:77]: nothing is to be done\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Repeat(other, noise)+line), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, _, err := logs.Files([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	if got := docsInput("").Choose(context.Background(), files); len(got) != 1 || filepath.Base(got[0]) != "proxy.log" {
		t.Errorf("read are %v", got)
	}
}

// TestHarborArchive reads the directory as an archive in which the proxy's log comes
// last. It reads the archive from a file and from a stream that can be read only once.
func TestHarborArchive(t *testing.T) {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, member := range []titled{
		{"harbor/core.log", example(t, "harbor-core")}, {"other/registry.log", example(t, "distribution, text")},
		{"harbor/registry.log.1", "Jun 12 09:45:02 172.18.0.1 registry[7]: " + example(t, "distribution, text")}, {"harbor/proxy.log", example(t, "harbor")},
	} {
		if err := tw.WriteHeader(&tar.Header{Name: member.title, Mode: 0o600, Size: int64(len(member.text) + 1)}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, member.text+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{"", "gz", "xz"} {
		packed := b.Bytes()
		if form != "" {
			packed = compress(t, form, packed)
		}
		path := filepath.Join(t.TempDir(), "harbor.tar")
		if err := os.WriteFile(path, packed, 0o600); err != nil {
			t.Fatal(err)
		}
		in := docsInput("")
		var from []string
		err := in.ReadFile(context.Background(), path, func(src logs.Source, _ *trace.Record) error {
			from = append(from, strings.TrimPrefix(src.File, path+":"))
			return nil
		})
		if diff := cmp.Diff([]string{"other/registry.log", "harbor/proxy.log"}, from); diff != "" || err != nil || count(in) != 2 {
			t.Errorf("%s: %v, skipped %+v, files differ (-want +got):\n%s", form, err, in.Skipped(), diff)
		}
		if got := read(t, docsInput(""), string(packed)); len(got) != 4 {
			t.Errorf("%s: what can be read once gave %d records", form, len(got))
		}
	}
}

// TestFollowFindsFormats follows a log of each format, from a pipe and from a file, and
// from the beginning and the end of the file.
func TestFollowFindsFormats(t *testing.T) {
	for _, x := range fromDocs(t, "A line of each") {
		if x.format() == formats.URIs {
			continue // which have no times
		}
		in := docsInput("")
		if err := in.Follow(strings.NewReader("\n"+x.text+"\n"+x.text+"\n"), "-", counter(t, x, 2)); err != nil {
			t.Errorf("%s: %v", x.title, err)
		}
		for _, before := range []int{0, 1} {
			for _, fromEnd := range []bool{false, true} {
				path := filepath.Join(t.TempDir(), "log")
				f, err := os.Create(path)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if _, err := f.WriteString(strings.Repeat(x.text+"\n", before)); err != nil {
					t.Fatal(err)
				}
				follower, err := logs.Follow(path, fromEnd)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := f.WriteString(x.text + "\n"); err != nil {
					t.Fatal(err)
				}
				follower.Stop()
				want := 1
				if !fromEnd {
					want += before
				}
				if err := docsInput("").Follow(follower, path, counter(t, x, want)); err != nil {
					t.Errorf("%s: %v", x.title, err)
				}
				if err := follower.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// TestFollowFindsNewFormat follows a log whose writer changed to another format, so that
// the beginning of the file has another format than all new lines.
func TestFollowFindsNewFormat(t *testing.T) {
	old, now := titled{text: combined("203.0.113.7")}, titled{title: "trace", text: example(t, "trace")}
	for _, n := range []int{1, 250, 2000} {
		for _, pair := range [][2]titled{{old, now}, {now, {title: "clf", text: example(t, "clf")}}} {
			path := filepath.Join(t.TempDir(), "log")
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteString(strings.Repeat(pair[0].text+"\n", n) + strings.Repeat(pair[1].text+"\n", 250)); err != nil {
				t.Fatal(err)
			}
			follower, err := logs.Follow(path, true)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString(pair[1].text + "\n"); err != nil {
				t.Fatal(err)
			}
			follower.Stop()
			if err := docsInput("").Follow(follower, path, counter(t, pair[1], 1)); err != nil {
				t.Errorf("%d lines before: %v", n, err)
			}
			if err := follower.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// counter checks records, and at the end of the test how many there were.
func counter(t *testing.T, x titled, want int) func(logs.Source, *trace.Record) error {
	n := 0
	t.Cleanup(func() {
		if n != want {
			t.Errorf("%s: followed %d records, want %d", x.title, n, want)
		}
	})
	return func(_ logs.Source, r *trace.Record) error {
		n++
		if diff := cmp.Diff(x.told(), plain(*r)); diff != "" {
			t.Errorf("%s: the record differs (-want +got):\n%s", x.title, diff)
		}
		return nil
	}
}

// TestIdentify checks that equal records get equal ids in every copy of a log, whatever
// surrounds the lines, and that two equal requests get different ids.
func TestIdentify(t *testing.T) {
	log := combined("203.0.113.7") + "\n" + combined("203.0.113.8") + "\n" + combined("203.0.113.7") + "\n" +
		strings.Replace(combined("203.0.113.7"), ":45:01", ":45:09", 1) + "\n"
	ids := func(input string) (ids []string) {
		in := logs.NewInput(&logs.InputOptions{Identify: true})
		for _, r := range read(t, in, input) {
			ids = append(ids, r.ID)
		}
		if int(in.Identified()) != len(ids) {
			t.Errorf("%d records got ids, and %d are said to", len(ids), in.Identified())
		}
		return ids
	}
	want := ids(log)
	distinct := map[string]bool{}
	for _, id := range want {
		distinct[id] = true
	}
	if len(want) != 4 || len(distinct) != 4 {
		t.Fatalf("the ids are %q", want)
	}
	for name, copied := range map[string]string{
		"copy": log, "behind a prefix": "registry-1  | " + strings.ReplaceAll(strings.TrimSuffix(log, "\n"), "\n", "\nregistry-1  | "),
		"twice in a file": log + log,
	} {
		got := ids(copied)
		if diff := cmp.Diff(want, got[:4]); diff != "" {
			t.Errorf("%s: ids differ (-want +got):\n%s", name, diff)
		}
		for _, id := range got {
			if !distinct[id] {
				t.Errorf("%s: another id %s", name, id)
			}
		}
	}
	in := logs.NewInput(&logs.InputOptions{Identify: true})
	got := read(t, in, `{"http.request.method":"GET","http.request.uri":"v2","timestamp":"2024-06-12T09:45:01Z","id":"x"}`)
	if len(got) != 1 || got[0].ID != "x" || in.Identified() != 0 {
		t.Errorf("a record with an id: %+v", got)
	}
}

// TestBoundedMemory reads endless input of each kind that makes a reader keep state. It
// must take no more memory than short input.
func TestBoundedMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	const size = 32 << 20
	quoted, _ := json.Marshal(strings.Repeat("x", 16<<10))
	for name, unit := range map[string]string{
		"NULs": strings.Repeat("\x00", 1<<10), "one line": strings.Repeat("x", 1<<10), "lines of no format": strings.Repeat("what is this\n", 100),
		"pieces of CRI":    "2024-06-12T09:45:02Z stdout P " + strings.Repeat("x", 8<<10) + "\n",
		"pieces of Docker": `{"log":` + string(quoted) + `,"stream":"stdout","time":"2024-06-12T09:45:02Z"}` + "\n",
		"an object":        `{"a":[[[{"b":`, "quotes": `1.1.1.1 - - [12/Jun/2024:09:45:01 +0000] "GET \"`, "clients": "1.1.1.1, ", "dashes": "- ",
	} {
		for _, head := range []string{"", combined("203.0.113.7") + "\n"} {
			var peak uint64
			reads := 0
			r := io.MultiReader(strings.NewReader(head), io.LimitReader(&repeated{unit: []byte(unit), each: func() {
				if reads++; reads%64 == 0 {
					var m runtime.MemStats
					runtime.ReadMemStats(&m)
					peak = max(peak, m.HeapAlloc)
				}
			}}, size))
			runtime.GC()
			var before runtime.MemStats
			runtime.ReadMemStats(&before)
			in := logs.NewInput(nil)
			err := in.ReadFrom(context.Background(), r, "f", func(logs.Source, *trace.Record) error { return nil })
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if grown := int64(peak) - int64(before.HeapAlloc); grown > 24<<20 {
				t.Errorf("%s: %d MiB of memory", name, grown>>20)
			}
		}
	}
}

// repeated is a reader that repeats its unit.
type repeated struct {
	unit, rest []byte
	each       func()
}

func (r *repeated) Read(b []byte) (int, error) {
	r.each()
	for n := 0; n < len(b); {
		if len(r.rest) == 0 {
			r.rest = r.unit
		}
		k := copy(b[n:], r.rest)
		n, r.rest = n+k, r.rest[k:]
	}
	return len(b), nil
}

// TestWideDictionary refuses an xz file whose dictionary takes 4 GiB.
func TestWideDictionary(t *testing.T) {
	in := logs.NewInput(nil)
	got := read(t, in, "\xfd7zXZ\x00\x00\x04\xe6\xd6\xb4\x46\x02\x00\x21\x01\x28\x00\x00\x00"+strings.Repeat("x", 100))
	if s := in.Skipped(); len(got) != 0 || len(s) != 1 || s[0].Kind != trace.BadFile || !strings.Contains(s[0].First[0].Why, "dictionary takes 4096 MiB") {
		t.Errorf("skipped %+v", s)
	}
}

// TestJSONOfNginx reads JSON from hand-written nginx log formats: missing variables and
// \xNN escapes.
func TestJSONOfNginx(t *testing.T) {
	for name, line := range map[string]string{
		"missing": `{"time_local":"12/Jun/2024:09:45:02 +0000","remote_addr":"203.0.113.7","request":"GET /v2/ HTTP/1.1","status":200,"body_bytes_sent":2,"upstream_response_time":-,"request_time":1.000,"x":}`,
		"parts":   `{"@timestamp":"2024-06-12T09:45:02Z","client_ip":"203.0.113.7","method":"GET","path":"/v2/","args":"","status":200,"bytes_sent":2,"request_time":1.000}`,
		"msec":    `{"msec":"1718185502.000","http_x_forwarded_for":"203.0.113.7, 10.0.0.12","request_method":"GET","request_uri":"/v2/","status":"200","bytes_sent":"2","request_time":"1.000"}`,
		"escaped": `{"time_iso8601":"2024-06-12T09:45:02+00:00","remote_addr":"203.0.113.7","request":"GET /v2/ HTTP/1.1","http_referer":"\x22","status":"200","body_bytes_sent":"2","request_time":"1.000"}`,
	} {
		in := logs.NewInput(nil)
		got := read(t, in, line+"\n")
		want := trace.Record{Method: "GET", URI: "/v2/", RemoteAddr: "203.0.113.7", Status: 200, Written: 2, Duration: time.Second,
			Time: time.Date(2024, 6, 12, 9, 45, 1, 0, time.UTC)}
		if len(got) != 1 {
			t.Errorf("%s: skipped %+v", name, in.Skipped())
			continue
		}
		got[0].Referer = ""
		if diff := cmp.Diff(want, plain(got[0])); diff != "" {
			t.Errorf("%s: the record differs (-want +got):\n%s", name, diff)
		}
	}
}

// benchLines is large enough that the fixed cost of a file does not matter.
const benchLines = 20_000

// BenchmarkLogs reads the examples of the docs.
func BenchmarkLogs(b *testing.B) {
	for _, x := range fromDocs(b, "A line of each") {
		input := bytes.Repeat([]byte(x.text+"\n"), benchLines)
		b.Run(x.title, func(b *testing.B) {
			b.SetBytes(int64(len(input)))
			for b.Loop() {
				in := docsInput("")
				n := 0
				err := in.ReadFrom(context.Background(), bytes.NewReader(input), "f", func(logs.Source, *trace.Record) error { n++; return nil })
				if err != nil || n != benchLines {
					b.Fatalf("%d records, %v", n, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchLines, "ns/record")
		})
	}
}
