package measure

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tried are the results of a program with two scenarios; 0 means not measured.
type tried struct{ First, Second int }

func (r *tried) Fill(old *tried) {
	if r.First == 0 {
		r.First = old.First
	}
	if r.Second == 0 {
		r.Second = old.Second
	}
}

func (r *tried) Parts() []Part { return []Part{(*triedPart)(r)} }

type triedPart tried

func (p *triedPart) Title() string { return "Tried" }
func (p *triedPart) About() string { return "What was tried." }
func (p *triedPart) Head() string  { return "- How" }
func (p *triedPart) Targets() []Target {
	return []Target{{Scenario: "tried", What: "first", Limit: 5, Figure: float64(p.First), Missing: p.First == 0}}
}
func (p *triedPart) Write(w *strings.Builder) { w.WriteString("The table.\n") }
func (p *triedPart) Pictures() []Picture {
	return []Picture{{File: "tried.svg", Chart: Chart{Title: "Tried"}}}
}

// TestCarry measures one scenario after the other, and then only reports.
func TestCarry(t *testing.T) {
	dir := t.TempDir()
	marks := Marks{Begin: "<!-- begin -->", End: "<!-- end -->"}
	o := &Output{File: filepath.Join(dir, "results"), Document: filepath.Join(dir, "doc.md"), Pictures: filepath.Join(dir, "img")}
	if err := os.WriteFile(o.Document, []byte("Before.\n<!-- begin -->\nold\n<!-- end -->\nAfter.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	document := func() string {
		t.Helper()
		b, err := os.ReadFile(o.Document)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	run := func(r *tried, fault error) (bool, error) {
		return Carry(o, marks, func() (*tried, error) { return r, fault })
	}
	if met, err := run(&tried{Second: 2}, nil); err != nil || !met {
		t.Errorf("a target that was not measured: met %v, %v", met, err)
	}
	// These results are incomplete: they are kept, but do not go into a document.
	fault := errors.New("no second scenario")
	if met, err := run(&tried{First: 7}, fault); !errors.Is(err, fault) || met {
		t.Errorf("with an error: met %v, %v", met, err)
	}
	if text := document(); !strings.Contains(text, "----  tried       first: not measured (at most 5.00)\n") || !strings.HasSuffix(text, "<!-- end -->\nAfter.\n") || strings.Contains(text, "old") {
		t.Errorf("the document is now:\n%s", text)
	}
	again := *o
	again.From = o.File
	met, err := Carry(&again, marks, func() (*tried, error) { return nil, errors.New("measured again") })
	if err != nil || met {
		t.Errorf("from the file: met %v, %v", met, err)
	}
	if text := document(); !strings.Contains(text, "FAIL  tried       first: 7.00 (at most 5.00)\n") || !strings.Contains(text, "### Tried\n\nWhat was tried.\n\n- How\n\n![Tried](img/tried.svg)\n\nThe table.\n") {
		t.Errorf("the document is now:\n%s", text)
	}
	if kept, err := Load[tried](o.File); err != nil || *kept != (tried{7, 2}) {
		t.Errorf("the file has %+v, %v", kept, err)
	}
	if _, err := os.Stat(filepath.Join(o.Pictures, "tried.svg")); err != nil {
		t.Error(err)
	}
	if _, err := run(nil, fault); !errors.Is(err, fault) {
		t.Errorf("without results: %v", err)
	}
	if err := os.WriteFile(o.File, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var syntax *json.SyntaxError
	if _, err := run(&tried{First: 1}, nil); !errors.As(err, &syntax) {
		t.Errorf("a damaged file of results: %v", err)
	}
}

func TestChoose(t *testing.T) {
	all := []Scenario[int]{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	for names, want := range map[string]string{"": "a,b,c", "c,a": "a,c", "b": "b"} {
		if list, err := Choose(all, names); err != nil || Names(list) != want {
			t.Errorf("%q chooses %q, %v, want %q", names, Names(list), err, want)
		}
	}
	if _, err := Choose(all, "a,d"); err == nil {
		t.Error("an unknown scenario was accepted")
	}
	if got := Names(all); got != "a,b,c" {
		t.Errorf("choosing left %q", got)
	}
}
