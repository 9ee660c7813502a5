package load_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/workload/load"
	"example.org/slipway/workload/replay/result"
)

// sample returns the result of a run of ten pullers. The rate is flat from knee on.
func sample(name string, each, knee float64) *load.Result {
	r := &load.Result{Version: 1, Name: name, Target: name + ":5000", Mode: "cached", Began: time.Unix(1.7e9, 0).UTC(), Complete: true,
		Environment: result.Here("test"), Options: map[string]string{"images": "1500", "url": "http://" + name + ":5000"},
		Images: load.ImagesInfo{Count: 1500, Patterns: 10, Requests: 8, Bytes: 11400}}
	at := 0.0
	for i := range 19 {
		n := min(i+1, 19-i)
		rate := each * min(float64(n), knee)
		p50 := 1e3 * float64(n) / rate
		s := load.Step{Pullers: n, Down: i > 9, Begin: at, Seconds: 60, Images: int64(60 * rate), Rate: rate, Operations: int64(60 * rate), OperationsRate: rate,
			Requests: int64(480 * rate), Bytes: int64(60 * rate * 11400), Image: result.Times{Mean: p50, P50: p50, P90: 2 * p50, P99: 3 * p50, P999: 4 * p50, Max: 9 * p50},
			ClientCPU: rate * 0.02, ClientShare: rate / 6000, MachineShare: min(1, rate/1500), ServerCPU: 60 * rate * 0.0004}
		r.Steps = append(r.Steps, s)
		for range 12 {
			at += 5
			r.Tallies = append(r.Tallies, load.Tally{At: at, Seconds: 5, Pullers: n, Images: int64(5 * rate), Rate: rate, Bytes: int64(5 * rate * 11400)})
		}
		r.Total.Images += s.Images
		r.Total.Requests += s.Requests
		r.Total.Best = load.Level{Pullers: 10, Rate: each * knee}
	}
	r.Total.Operations, r.Total.ServerCPU, r.Total.ServerMemory = r.Total.Images, 0.4, 38e6
	return r
}

func TestResultRoundTrip(t *testing.T) {
	want := sample("slipway", 300, 6)
	want.Faults = []load.FaultCount{{Kind: "status 404", Count: 3, Example: "GET <x>"}}
	var b bytes.Buffer
	if err := want.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	got, err := load.ReadResult(&b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, text := range []string{"", "{}", "[]", `{"version":2}`, `{"version":1,"steps":[{"pullers":-1}]}`} {
		if r, err := load.ReadResult(strings.NewReader(text)); err == nil {
			t.Errorf("%s was taken as %+v", text, r)
		}
	}
}

func TestPage(t *testing.T) {
	r := sample("<b>slipway</b>", 300, 6)
	r.Notes = []string{"WRONG CONTENT came <once>"}
	r.Faults = []load.FaultCount{{Kind: "wrong content", Count: 1, Example: "GET blobs/sha256:00"}}
	r.Total.Failed = 1
	var page, text bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	html := page.String()
	for _, want := range []string{"prefers-color-scheme: dark", "Rate by the number of pullers", "CPU time of the server", "Failures over time", "going down", "&lt;once&gt;", "class=\"warning\"", "--images"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, bad := range []string{"<b>", "src=", "href=", "@import", "url(", "<script"} {
		if strings.Contains(html, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if n := strings.Count(html, "<svg"); n != 14 {
		t.Errorf("the page has %d pictures, want 7 twice", n)
	}
	for _, want := range []string{"best: 1800 images a second with 10 pullers", "WRONG CONTENT", "wrong content", "images/s", "38.0 MB"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, &text)
		}
	}
}

func TestCompare(t *testing.T) {
	a, b := sample("slipway", 300, 8), sample("other", 150, 4)
	b.Images.Count = 100
	b.Steps = b.Steps[:8] // this run never had nine pullers
	c, err := load.Compare([]*load.Result{a, b})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Levels) != 10 || !cmp.Equal(c.Levels[3].Rates, []float64{1200, 600}) || c.Levels[3].Ratios[1] != 0.5 || c.Levels[9].Rates[1] != 0 || c.Ratios[1] != 0.25 {
		t.Errorf("the comparison is %+v", c)
	}
	if len(c.Notes) != 1 || !strings.Contains(c.Notes[0], "different images") {
		t.Errorf("notes %q", c.Notes)
	}
	var text, page, raw bytes.Buffer
	for _, err := range []error{c.WriteText(&text), c.WriteHTML(&page), c.WriteJSON(&raw)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(text.String(), "0.25 times that of slipway") || !strings.Contains(text.String(), "x slipway") || !json.Valid(raw.Bytes()) {
		t.Errorf("text:\n%s", &text)
	}
	if n := strings.Count(page.String(), "<svg"); n != 10 {
		t.Errorf("the page has %d pictures, want 5 twice", n)
	}
	if _, err := load.Compare([]*load.Result{a}); err == nil {
		t.Error("one result was compared")
	}
}

func FuzzReadResult(f *testing.F) {
	var b bytes.Buffer
	if err := sample("slipway", 300, 6).WriteJSON(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(`{"version":1,"steps":[{"pullers":3,"rate":5,"seconds":0}],"tallies":[{"at":1}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := load.ReadResult(bytes.NewReader(raw))
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := r.WriteHTML(&out); err != nil {
			t.Error(err)
		}
		if err := r.WriteText(&out); err != nil {
			t.Error(err)
		}
		if c, err := load.Compare([]*load.Result{r, r}); err != nil {
			t.Error(err)
		} else if err := c.WriteHTML(&out); err != nil {
			t.Error(err)
		}
	})
}

func FuzzContents(f *testing.F) {
	f.Add([]byte(`{"manifests":[{"digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000","platform":{"os":"linux","architecture":"amd64"}}]}`))
	f.Add([]byte(`{"config":{"digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000","size":2},"layers":[]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		next, blobs, err := load.Contents(raw)
		if err != nil {
			return
		}
		if (next == "") == (len(blobs) == 0) {
			t.Errorf("an image has blobs or leads to another manifest: %q and %d blobs", next, len(blobs))
		}
	})
}

func TestView(t *testing.T) {
	status := func(n int) load.Status {
		s := load.Status{Phase: "running", Elapsed: time.Duration(n) * time.Second, Length: time.Minute, Images: int64(n), Failed: 2}
		for i := range n {
			s.Tallies = append(s.Tallies, load.Tally{At: float64(i), Seconds: 1, Pullers: 3, Rate: float64(100 * i), Bytes: 5e6})
		}
		s.Tally = s.Tallies[n-1]
		return s
	}
	var lines bytes.Buffer
	v := load.NewView(&lines, 0)
	v.Show(load.Status{Phase: "pushing", Done: 5, Total: 12})
	v.Show(load.Status{Phase: "pushing", Done: 6, Total: 12}) // too soon for a line
	for _, n := range []int{1, 1, 2} {
		v.Show(status(n))
	}
	v.End()
	want := "pushing: 5 of 12\n" +
		fmt.Sprintf("%8s  %3d pullers  %8s/s  %9s/s  p50 -  p99 -  0 failed\n", "1s", 3, "0.00", "5.0 MB") +
		fmt.Sprintf("%8s  %3d pullers  %8s/s  %9s/s  p50 -  p99 -  0 failed\n", "2s", 3, "100", "5.0 MB")
	if diff := cmp.Diff(want, lines.String()); diff != "" {
		t.Error(diff)
	}
	var screen bytes.Buffer
	v = load.NewView(&screen, 40)
	v.Show(load.Status{Phase: "warming", Done: 1, Total: 2})
	v.Show(status(5))
	v.Show(status(9))
	v.End()
	text := screen.String()
	if !strings.Contains(text, "▁▁▂▃▄▅▆▇") && !strings.Contains(text, "█") || !strings.HasSuffix(text, "\x1b[4A\x1b[J") {
		t.Errorf("the screen got %q", text)
	}
	for line := range strings.Lines(text) {
		if n := len([]rune(strings.TrimRight(line[strings.LastIndex(line, "\x1b")+1:], "\n"))); n > 42 {
			t.Errorf("a line of %d letters on a screen of 40: %q", n, line)
		}
	}
}
