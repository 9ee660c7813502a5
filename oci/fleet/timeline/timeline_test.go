package timeline_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"example.org/slipway/oci/fleet"
	"example.org/slipway/oci/fleet/timeline"
)

func TestText(t *testing.T) {
	at := func(ms int) *time.Duration { return new(time.Duration(ms) * time.Millisecond) }
	s := &fleet.Start{Over: true, More: 2, Files: []fleet.StartFile{
		{Path: "usr/bin/app", From: "series", Asked: at(0), Here: at(20), Wanted: at(48)},
		{Path: "usr/lib/late.so", Asked: at(24), Here: at(44), Wanted: at(23)},
	}}
	got := timeline.Text(s)
	if len(got) != 4 || got[3] != "and 2 more files" {
		t.Fatalf("%d lines:\n%s", len(got), strings.Join(got, "\n"))
	}
	for i, want := range []string{"|a-------------------h                          w|", "|                       wa===================h   |"} {
		if !strings.HasSuffix(got[i+1], want) {
			t.Errorf("got  %s\nwant %s", got[i+1], want)
		}
	}
	if got := timeline.Text(&fleet.Start{}); got != nil {
		t.Errorf("a start without files is drawn: %q", got)
	}
}

// shape is what a picture has.
type shape struct {
	name  string
	class string
	attrs map[string]float64
}

// parse reads a picture, and fails the test unless it is XML with elements that a picture may have.
func parse(t interface{ Fatalf(string, ...any) }, picture string) (shapes []shape, texts []string) {
	d := xml.NewDecoder(strings.NewReader(picture))
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return shapes, texts
		}
		if err != nil {
			t.Fatalf("%v: %s", err, picture)
		}
		switch e := tok.(type) {
		case xml.StartElement:
			switch e.Name.Local {
			case "svg", "g", "title", "text", "rect", "circle", "line", "style":
			default:
				t.Fatalf("the picture has an element %s", e.Name.Local)
			}
			s := shape{name: e.Name.Local, attrs: map[string]float64{}}
			for _, a := range e.Attr {
				if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "href" || a.Name.Local == "style" {
					t.Fatalf("the picture has an attribute %s", a.Name.Local)
				}
				if a.Name.Local == "class" {
					s.class = a.Value
				}
				if v, err := strconv.ParseFloat(a.Value, 64); err == nil {
					s.attrs[a.Name.Local] = v
				}
			}
			shapes = append(shapes, s)
		case xml.CharData:
			texts = append(texts, string(e))
		}
	}
}

// TestPicture checks that what happens later is further to the right, and that only what was waited
// for is drawn as that.
func TestPicture(t *testing.T) {
	at := func(ms int) *time.Duration { return new(time.Duration(ms) * time.Millisecond) }
	s := &fleet.Start{Files: []fleet.StartFile{
		{Path: "early", From: "own", Asked: at(0), Here: at(50), Wanted: at(75)},
		{Path: "late", Asked: at(25), Here: at(100), Wanted: at(20)},
		{Path: "in vain", From: "vote", Asked: at(0), Here: at(100)},
	}}
	shapes, texts := parse(t, timeline.Picture(s, "Start of app"))
	var ways, waits, wants []shape
	for _, s := range shapes[:len(shapes)-7] { // without the legend
		switch s.class {
		case "way":
			ways = append(ways, s)
		case "wait":
			waits = append(waits, s)
		case "want":
			wants = append(wants, s)
		}
	}
	if len(ways) != 3 || len(waits) != 1 || len(wants) != 2 {
		t.Fatalf("%d on their way, %d waited for, %d wanted, want 3, 1 and 2", len(ways), len(waits), len(wants))
	}
	x0, scale := ways[0].attrs["x"], ways[0].attrs["width"]/50
	for what, got := range map[string][2]float64{
		"a request at 25 ms": {ways[1].attrs["x"], x0 + 25*scale}, "a wish at 75 ms": {wants[0].attrs["cx"], x0 + 75*scale},
		"a wait of 80 ms": {waits[0].attrs["width"], 80 * scale}, "a way of 100 ms": {ways[2].attrs["width"], 100 * scale},
	} {
		if d := got[0] - got[1]; d > .2 || d < -.2 {
			t.Errorf("%s is drawn at %.1f, want %.1f", what, got[0], got[1])
		}
	}
	all := strings.Join(texts, "|")
	for _, want := range []string{"Start of app", "early", "late", "in vain", "late, asked for at 25ms, here at 100ms, wanted at 20ms"} {
		if !strings.Contains(all, want) {
			t.Errorf("the picture lacks %q: %s", want, all)
		}
	}
}

// TestHostile draws any start: lines of the text have one width and no control characters, pictures
// are XML without scripts, and everything is drawn within them.
func TestHostile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		moment := rapid.Ptr(rapid.Map(rapid.OneOf(rapid.Int64Range(-10, 1<<40), rapid.Int64()), func(n int64) time.Duration { return time.Duration(n / 100) }), true)
		word := rapid.OneOf(rapid.SampledFrom([]string{"a", "<b&\"'>", "é\xff", "</title><script>x</script>", "\u202eevil", "\x1b[31m\n", strings.Repeat("ü/", 100)}), rapid.String())
		s := &fleet.Start{}
		for i := range rapid.IntRange(0, 150).Draw(t, "files") {
			s.Files = append(s.Files, fleet.StartFile{Path: word.Draw(t, "path") + fmt.Sprint(i), From: word.Draw(t, "from"),
				Wanted: moment.Draw(t, "wanted"), Asked: moment.Draw(t, "asked"), Here: moment.Draw(t, "here")})
		}
		for i, line := range timeline.Text(s) {
			if i > 0 && utf8.RuneCountInString(line) != timeline.Width {
				t.Fatalf("a line has %d characters: %s", utf8.RuneCountInString(line), line)
			}
			if strings.ContainsAny(line, "\x1b\n\u202e") {
				t.Fatalf("a line has control characters: %q", line)
			}
		}
		title := word.Draw(t, "title")
		for _, picture := range []string{timeline.Picture(s, title), timeline.Document(s, title)} {
			shapes, _ := parse(t, picture)
			for _, s := range shapes {
				if x := s.attrs["x"] + s.attrs["cx"]; s.name != "svg" && (x < 0 || x+s.attrs["width"] > 930) {
					t.Fatalf("a %s is drawn at %v, outside of the picture", s.name, s.attrs)
				}
			}
		}
	})
}
