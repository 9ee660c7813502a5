package measure

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

// Run says how, when and on what a scenario was measured.
type Run struct {
	Date    time.Time `json:"date"`
	Commit  string    `json:"commit"`
	Command string    `json:"command"`
	Machine Machine   `json:"machine"`
	Rounds  int       `json:"rounds"`
	TookSec float64   `json:"took_sec"`
	Quick   bool      `json:"quick,omitempty"`
}

// Head returns what a document says of the run before its figures: a Markdown list without the
// final line feed.
func (r *Run) Head() string {
	quick := ""
	if r.Quick {
		quick = "; **a quick look, not a measurement**"
	}
	rounds := "1 round"
	if r.Rounds != 1 {
		rounds = fmt.Sprint(r.Rounds, " rounds")
	}
	return fmt.Sprintf("- Command: `%s`%s\n- Commit: %s; %s; took %s; %s\n- Machine: %s; %s", r.Command, quick, r.Commit,
		r.Date.UTC().Format("2 January 2006 15:04 UTC"), time.Duration(r.TookSec)*time.Second, rounds, r.Machine, r.Machine.Go)
}

// Output says where a suite's results go.
type Output struct {
	// File receives the raw results. If it is empty, they are not kept.
	File string
	// From is a file of results to report on instead of measuring.
	From string
	// Document receives the report between its marks. If it is empty, the report is printed.
	Document string
	// Pictures is a directory. If it is empty, there are no pictures.
	Pictures string
}

// Add defines the flags -out, -from, -doc and -img.
func (o *Output) Add(fl *flag.FlagSet) {
	fl.StringVar(&o.File, "out", "", "`file` for the results")
	fl.StringVar(&o.From, "from", "", "`file` of results to report on, instead of measuring")
	fl.StringVar(&o.Document, "doc", "", "Markdown `file` to write the report into, between its marks (default: print it)")
	fl.StringVar(&o.Pictures, "img", "", "`directory` for the pictures")
}

// Filled are results that can be completed from older results.
type Filled[T any] interface {
	*T
	Fill(old *T)
}

// Results are everything that a suite measured, in parts. They are kept as JSON.
type Results[T any] interface {
	Filled[T]
	// Parts returns what was measured.
	Parts() []Part
}

// Carry reads results, or calls measure and stores its results in the file, which keeps
// its results of other scenarios. Then it reports. It returns whether all targets are
// met. Results that come with an error do not go into a document. Without results there
// is nothing to report.
func Carry[T any, R Results[T]](o *Output, m Marks, measure func() (R, error)) (met bool, err error) {
	return CarryTo(o, measure, func(shown *Output, r R) (bool, error) { return shown.publish(m, r.Parts()) })
}

// CarryTo does what [Carry] does, with the suite's own report.
func CarryTo[T any, R Filled[T]](o *Output, measure func() (R, error), report func(shown *Output, r R) (met bool, err error)) (met bool, err error) {
	if o.From != "" {
		r, err := Load[T](o.From)
		if err != nil {
			return false, err
		}
		return report(o, r)
	}
	r, measured := measure()
	if r == nil {
		return false, measured
	}
	if o.File != "" {
		old, err := Load[T](o.File)
		switch {
		case err == nil:
			r.Fill(old)
		case !errors.Is(err, os.ErrNotExist):
			return false, errors.Join(measured, err)
		}
		if err := Save(o.File, r); err != nil {
			return false, errors.Join(measured, fmt.Errorf("write results: %w", err))
		}
	}
	met, err = report(o.Shown(measured), r)
	return met, errors.Join(measured, err)
}

// Shown returns the output for results that came with the given error. If there was an error, they
// do not go into a document.
func (o *Output) Shown(err error) *Output {
	shown := *o
	if err != nil {
		shown.Document, shown.Pictures = "", ""
	}
	return &shown
}

// publish reports on parts.
func (o *Output) publish(m Marks, parts []Part) (met bool, err error) {
	var verdict strings.Builder
	met = CheckParts(&verdict, parts)
	return met, o.Publish(m, verdict.String(), Report(verdict.String(), parts), Pictures(parts))
}

// Publish writes the pictures, and writes the report into the document. Without a document it
// prints the report, otherwise the verdict on the targets.
func (o *Output) Publish(m Marks, verdict, report string, pictures []Picture) error {
	if o.Pictures != "" {
		if err := WritePictures(o.Pictures, pictures); err != nil {
			return fmt.Errorf("write pictures: %w", err)
		}
	}
	if o.Document == "" {
		fmt.Println(report)
		return nil
	}
	fmt.Print(verdict)
	doc, err := os.ReadFile(o.Document)
	if err != nil {
		return err
	}
	changed, err := m.Replace(string(doc), report)
	if err != nil {
		return fmt.Errorf("%s: %w", o.Document, err)
	}
	return os.WriteFile(o.Document, []byte(changed), 0o644)
}
