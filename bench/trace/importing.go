package trace

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"example.org/slipway/integration/bench/measure"
)

// Import says how fast files in the format of the public archive are converted to a
// store.
type Import struct {
	Run     measure.Run `json:"run"`
	Records int64       `json:"records"`
	Files   int         `json:"files"`
	Bytes   int64       `json:"bytes"`
	// Scan holds the times of the limit. Decode holds the times that encoding/json takes
	// for the records of some files, DecodedBytes in all. Both run on one core.
	Scan         []measure.Times `json:"scan"`
	Decode       []measure.Times `json:"decode"`
	DecodedBytes int64           `json:"decoded_bytes"`
	One          []measure.Spent `json:"one_core"`
	Two          []measure.Spent `json:"two_cores,omitempty"`
}

const (
	// bytesPerRecord is the space that a record takes while it is imported: in the archive, in
	// sorted runs on the disk, and in the store.
	bytesPerRecord = 600
	// leastRecords is the number of records below which starting and ending take a
	// considerable part of the time.
	leastRecords = 1_000_000
	// decodeFiles is the number of files that encoding/json reads: it is slow.
	decodeFiles = 4
)

func runImport(b *bench, ctx context.Context) error {
	began := time.Now()
	out := &Import{Records: b.o.records}
	if err := b.needRoom(fmt.Sprintf("the import of %d records", out.Records), out.Records*bytesPerRecord); err != nil {
		return err
	}
	archive := b.NewDir()
	defer b.Remove(archive)
	args := []string{"trace", "generate", "--zone", "all", "--seed", "1", "--ibm", archive}
	if out.Records != archiveRequests {
		args = append(args, "--requests", strconv.FormatInt(out.Records, 10))
	}
	_, made, err := b.Slipway(ctx, 0, args...)
	if err != nil {
		return err
	}
	b.Logf("%d records generated in %.0f s", out.Records, made.Wall)
	files, err := filesOf(archive)
	if err != nil {
		return err
	}
	out.Files = len(files)
	for _, f := range files {
		out.Bytes += f.size
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for round := range b.Run.Rounds {
		if err := out.round(b, ctx, archive, files); err != nil {
			return err
		}
		b.Logf("round %d: %.2f million records/s on one core, %.0f MB/s; the limit is %.0f MB/s", round+1, float64(out.Records)/1e6/out.One[round].Wall,
			out.rate(out.One[round].Times), out.rate(out.Scan[round]))
	}
	out.Run = b.Since(began)
	b.results.Import = out
	return nil
}

// round measures the limit, encoding/json, and the import on one core and on two.
func (im *Import) round(b *bench, ctx context.Context, archive string, files []file) error {
	scan, err := measure.Timed(1, func() error { return scanAll(ctx, files) })
	if err != nil {
		return err
	}
	im.DecodedBytes = 0
	decode, err := measure.Timed(1, func() error {
		for _, f := range files[:min(decodeFiles, len(files))] {
			if err := decodeFile(f.path); err != nil {
				return err
			}
			im.DecodedBytes += f.size
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	im.Scan, im.Decode = append(im.Scan, scan), append(im.Decode, decode)
	for _, x := range []struct {
		cores int
		to    *[]measure.Spent
	}{{1, &im.One}, {2, &im.Two}} {
		if x.cores > measure.CPUs() {
			b.Logf("no second CPU to import on")
			continue
		}
		u, err := b.importOnce(ctx, x.cores, archive, im.Records)
		if err != nil {
			return err
		}
		*x.to = append(*x.to, u)
	}
	return nil
}

// importOnce imports an archive into a new store, and removes the store.
func (b *bench) importOnce(ctx context.Context, cores int, archive string, want int64) (measure.Spent, error) {
	store := b.NewDir()
	defer b.Remove(store)
	var done struct {
		Records int64
		Skipped []json.RawMessage
	}
	u, err := b.Answer(ctx, cores, &done, "trace", "import", archive, "-o", store, "--output", "json")
	if err == nil && (done.Records != want || len(done.Skipped) > 0) {
		err = fmt.Errorf("%d of %d records were imported, with %d reasons to skip some", done.Records, want, len(done.Skipped))
	}
	return u, err
}

// file is a file of an archive.
type file struct {
	path string
	size int64
}

// filesOf returns the files below a directory.
func filesOf(dir string) (out []file, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		out = append(out, file{path, fi.Size()})
		return nil
	})
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("no files in %s", filepath.Base(dir))
	}
	return out, err
}

// scanAll reads files and steps from quote to quote. Every reader of JSON must do that,
// because it has to know where strings end.
func scanAll(ctx context.Context, files []file) error {
	buf := make([]byte, 1<<20)
	quotes := 0
	for _, f := range files {
		n, err := scan(f.path, buf)
		if err != nil {
			return err
		}
		if quotes += n; ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if quotes == 0 || quotes%2 != 0 {
		return fmt.Errorf("%d quotes in the archive", quotes)
	}
	return nil
}

func scan(path string, buf []byte) (quotes int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for {
		n, err := f.Read(buf)
		for rest := buf[:n]; ; quotes++ {
			i := bytes.IndexByte(rest, '"')
			if i < 0 {
				break
			}
			rest = rest[i+1:]
		}
		if err == io.EOF {
			return quotes, nil
		}
		if err != nil {
			return quotes, err
		}
	}
}

// archiveRecord has the fields of the public archive.
type archiveRecord struct {
	Host      string  `json:"host"`
	Duration  float64 `json:"http.request.duration"`
	Method    string  `json:"http.request.method"`
	Client    string  `json:"http.request.remoteaddr"`
	URI       string  `json:"http.request.uri"`
	Agent     string  `json:"http.request.useragent"`
	Status    int     `json:"http.response.status"`
	Written   int64   `json:"http.response.written"`
	ID        string  `json:"id"`
	Timestamp string  `json:"timestamp"`
}

// decodeFile decodes the records of a file one after the other.
func decodeFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	d := json.NewDecoder(f)
	if _, err := d.Token(); err != nil { // the start of the array
		return err
	}
	for d.More() {
		var r archiveRecord
		if err := d.Decode(&r); err != nil {
			return err
		}
	}
	return nil
}

// rate returns MB of the archive per second.
func (im *Import) rate(t measure.Times) float64 { return float64(im.Bytes) / 1e6 / t.Wall }

// perCore returns millions of records per second and core.
func (im *Import) perCore(list []measure.Spent, cores float64) []float64 {
	return of(list, func(u measure.Spent) float64 { return float64(im.Records) / 1e6 / u.Wall / cores })
}

// Title is the heading.
func (im *Import) Title() string { return "Import" }

// Head says how the part was measured.
func (im *Import) Head() string {
	return fmt.Sprintf("%s\n- %d records of seven zones, %d files, %s MB of JSON", im.Run.Head(), im.Records, im.Files, measure.Megabytes(im.Bytes))
}

// About says what was done.
func (im *Import) About() string {
	return "Files in the form of the public archive become a new store: parsed, sorted by time, their names interned, and compressed. One core is one CPU for the process and what it starts. " +
		"The limit is a program on one core that reads the same bytes and steps from quote to quote, as every reader of JSON must, and does nothing with them. " +
		"encoding/json decodes the ten fields of each record and drops them, on one core. The files are in the page cache."
}

// Targets returns what is promised.
func (im *Import) Targets() []measure.Target {
	one := measure.TargetOf("import", "records/s, one core", 0.5, true, im.perCore(im.One, 1))
	two := measure.TargetOf("import", "records/s/core, two cores", 0.5, true, im.perCore(im.Two, 2))
	one.Unit, two.Unit = " M", " M"
	if im.Records < leastRecords {
		one.Missing, two.Missing = true, true
	}
	return []measure.Target{one, two, worst("import", "peak RSS", 2000, " MB", append(of(im.One, peakMB), of(im.Two, peakMB)...))}
}

// Write writes the tables.
func (im *Import) Write(w *strings.Builder) {
	none := "-"
	reference := func(name string, list []measure.Times, bytes int64) []string {
		var rate, records []float64
		for _, t := range list {
			rate = append(rate, float64(bytes)/1e6/t.Wall)
			records = append(records, float64(im.Records)*float64(bytes)/float64(im.Bytes)/1e6/t.Wall)
		}
		return []string{name, measure.SpreadOf(records).String(), measure.SpreadOf(rate).String(), none, none, none, none}
	}
	row := func(name string, list []measure.Spent, cores float64) []string {
		return []string{name, measure.SpreadOf(im.perCore(list, cores)).String(), spread(list, func(u measure.Spent) float64 { return im.rate(u.Times) }),
			measure.SpreadOf(im.timesLimit(list)).String(),
			spread(list, func(u measure.Spent) float64 { return u.CPU * 1e9 / float64(im.Records) }), spread(list, peakMB), spread(list, otherCPUs)}
	}
	rows := [][]string{reference("limit", im.Scan, im.Bytes), reference("encoding/json", im.Decode, im.DecodedBytes), row("import, one core", im.One, 1)}
	if len(im.Two) > 0 {
		rows = append(rows, row("import, two cores", im.Two, 2))
	}
	measure.Table(w, 1, []string{"", "M records/s/core", "MB/s", "CPU / limit's", "CPU ns/record", "peak RSS MB", "other CPUs"}, rows)
}

// timesLimit returns the import's CPU time divided by the CPU time of the limit, by
// round.
func (im *Import) timesLimit(list []measure.Spent) []float64 {
	var out []float64
	for i, u := range list {
		out = append(out, u.CPU/im.Scan[i].CPU)
	}
	return out
}

// Pictures returns no pictures: only one figure matters.
func (im *Import) Pictures() []measure.Picture { return nil }
