package agent

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"example.org/slipway/node/gearfs/starts"
)

func TestTextChart(t *testing.T) {
	at := func(ms int) *time.Duration { return new(time.Duration(ms) * time.Millisecond) }
	s := &starts.Start{Over: true, Watched: true, Files: []starts.File{
		{Path: "usr/bin/app", From: "series", Asked: at(0), Here: at(20), Wanted: at(48)},
		{Path: "usr/lib/late.so", Asked: at(24), Here: at(44), Wanted: at(23)},
		{Path: "etc/never", From: "vote"},
	}}
	got := textChart(s)
	if len(got) != 3 {
		t.Fatalf("%d lines:\n%s", len(got), strings.Join(got, "\n"))
	}
	for i, want := range []string{"|a-------------------h                          w|", "|                       wa===================h   |"} {
		if !strings.HasSuffix(got[i+1], want) {
			t.Errorf("got  %s\nwant %s", got[i+1], want)
		}
	}
}

// TestCharts draws any start: the text has lines of one width, the picture is XML, and
// nothing in a path gets out of its place.
func TestCharts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		moment := rapid.Ptr(rapid.Map(rapid.Int64Range(-10, 1<<40), func(n int64) time.Duration { return time.Duration(n) }), true)
		s := &starts.Start{}
		for i := range rapid.IntRange(0, 500).Draw(t, "files") {
			s.Files = append(s.Files, starts.File{
				Path: rapid.SampledFrom([]string{"a", "<b&\"'>", "é\xff", strings.Repeat("ü/", 100)}).Draw(t, "path") + fmt.Sprint(i), From: "series",
				Wanted: moment.Draw(t, "wanted"), Asked: moment.Draw(t, "asked"), Here: moment.Draw(t, "here")})
		}
		for i, line := range textChart(s) {
			if i > 0 && strings.HasSuffix(line, "|") && utf8.RuneCountInString(line) != chartPath+1+8+2+chartCells+1 {
				t.Fatalf("line of %d characters: %s", utf8.RuneCountInString(line), line)
			}
		}
		d := xml.NewDecoder(strings.NewReader(svgChart(s, "<x>")))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
	})
}
