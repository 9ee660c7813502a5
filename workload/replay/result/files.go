package result

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
	"golang.org/x/sys/unix"

	"example.org/slipway/internal/durable"
	"example.org/slipway/workload/trace/store"
)

// These are the files of a result.
const (
	partGlob    = "requests-*.parquet"
	partName    = "requests-%06d.parquet"
	seriesName  = "series.parquet"
	SummaryName = "summary.json"
	reserveName = ".reserve"
	// reserveBytes are kept free for the summary, in case the disk becomes full.
	reserveBytes = 4 << 20
)

// row is a sample in its file. Times are microseconds from the beginning of the run.
type row struct {
	Task         int64  `parquet:"task,delta"`
	Step         int32  `parquet:"step"`
	Part         int32  `parquet:"part"`
	Worker       int32  `parquet:"worker"`
	Target       int32  `parquet:"target"`
	Method       string `parquet:"method,dict"`
	Object       string `parquet:"object,dict"`
	Outcome      string `parquet:"outcome,dict"`
	Status       int32  `parquet:"status"`
	Intended     int64  `parquet:"intended_us,delta"`
	Sent         int64  `parquet:"sent_us,delta"`
	First        int64  `parquet:"first_us,delta"`
	End          int64  `parquet:"end_us,delta"`
	Wait         int64  `parquet:"wait_us"`
	Bytes        int64  `parquet:"bytes"`
	Redirects    int32  `parquet:"redirects"`
	RedirectTime int64  `parquet:"redirect_us"`
	Extra        bool   `parquet:"extra"`
	Last         bool   `parquet:"last"`
}

func toRow(s *Sample) row {
	return row{s.Task, s.Step, int32(s.Part), int32(s.Worker), int32(s.Target), s.Method.String(), s.Object.String(), s.Outcome.String(),
		int32(s.Status), s.Intended, s.Sent, s.First, s.End, s.Wait, s.Bytes, int32(s.Redirects), s.RedirectTime, s.Extra, s.Last}
}

func (r *row) sample() Sample {
	return Sample{Task: r.Task, Step: r.Step, Part: uint8(r.Part), Worker: uint8(r.Worker), Target: uint8(r.Target),
		Method: store.ParseMethod(r.Method), Object: parseObject(r.Object), Outcome: parseOutcome(r.Outcome), Status: uint16(r.Status),
		Intended: r.Intended, Sent: r.Sent, First: r.First, End: r.End, Wait: r.Wait, Bytes: r.Bytes,
		Redirects: uint8(r.Redirects), RedirectTime: r.RedirectTime, Extra: r.Extra, Last: r.Last}
}

// parquetFile is a Parquet file that gets its name when it is complete.
type parquetFile[T any] struct {
	path string
	f    *os.File
	buf  *bufio.Writer
	w    *parquet.GenericWriter[T]
	rows int64
}

func createParquet[T any](path string) (*parquetFile[T], error) {
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, err
	}
	p := &parquetFile[T]{path: path, f: f, buf: bufio.NewWriterSize(f, 256<<10)}
	p.w = parquet.NewGenericWriter[T](p.buf, parquet.Compression(&parquet.Zstd), parquet.PageBufferSize(256<<10))
	return p, nil
}

func (p *parquetFile[T]) write(rows []T) error {
	_, err := p.w.Write(rows)
	p.rows += int64(len(rows))
	return err
}

// close gives the file its name. After an error there is no file.
func (p *parquetFile[T]) close() error {
	err := errors.Join(p.w.Close(), p.buf.Flush())
	if err == nil {
		err = p.f.Sync()
	}
	if err = errors.Join(err, p.f.Close()); err == nil {
		err = os.Rename(p.path+".tmp", p.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(p.path+".tmp"))
	}
	return nil
}

func (p *parquetFile[T]) discard() {
	_ = p.f.Close()
	_ = os.Remove(p.path + ".tmp")
}

// Recorder writes a result: samples of whole tasks, in files that are complete once they
// have their name. It is not safe for concurrent use.
type Recorder struct {
	// Aggregate counts all that was added, including what could not be written.
	Aggregate *Aggregate
	// Unwritten is how many samples are in no file because of Err.
	Unwritten int64
	Err       error
	// Clock returns the time, which decides when to try again after an error. Create sets
	// time.Now.
	Clock func() time.Time

	dir     string
	next    int
	part    *parquetFile[row]
	series  *parquetFile[Second]
	rows    []row
	pending map[int64][]Sample // samples of tasks that go on
	retry   time.Time
}

// maxPartRows bounds a file, and so what the writer holds in memory.
const maxPartRows = 1 << 20

// Begun reports whether a directory has samples of a run.
func Begun(dir string) (bool, error) {
	parts, err := filepath.Glob(filepath.Join(dir, partGlob))
	return len(parts) > 0, err
}

// Create begins a result in a directory, which it creates if it is missing. It is an
// error if the directory has a result, unless resume is set. With resume, Create counts
// the existing samples, and calls done with each task that has all of its samples.
func Create(dir string, resume bool, done func(task int64)) (*Recorder, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	parts, err := filepath.Glob(filepath.Join(dir, partGlob))
	if err != nil {
		return nil, err
	}
	slices.Sort(parts)
	if len(parts) > 0 && !resume {
		return nil, fmt.Errorf("%s has a result already; resume it, or name another directory", dir)
	}
	r := &Recorder{dir: dir, Clock: time.Now, pending: map[int64][]Sample{}}
	if r.series, err = createParquet[Second](filepath.Join(dir, seriesName)); err != nil {
		return nil, err
	}
	r.Aggregate = NewAggregate(func(s Second) error { return r.series.write([]Second{s}) })
	for _, p := range parts {
		err := readPart(p, func(s *Sample) error {
			if s.Last {
				done(s.Task)
			}
			return r.Aggregate.Add(s)
		})
		if err != nil {
			r.series.discard()
			return nil, fmt.Errorf("%w; without that file its requests are sent again", err)
		}
		if _, err := fmt.Sscanf(filepath.Base(p), partName, &r.next); err != nil {
			continue // a file of somebody else's that looks like a part: its number does not matter
		}
		r.next++
	}
	r.reserve()
	return r, nil
}

// reserve keeps room for the summary. Without it the summary is only less safe.
func (r *Recorder) reserve() {
	f, err := os.OpenFile(filepath.Join(r.dir, reserveName), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	_ = unix.Fallocate(int(f.Fd()), 0, 0, reserveBytes)
	_ = f.Close()
}

// Add takes samples. The samples of a task are written when the last one has come.
func (r *Recorder) Add(samples []Sample) {
	for i := range samples {
		s := &samples[i]
		if !s.Last {
			r.pending[s.Task] = append(r.pending[s.Task], *s)
			continue
		}
		if held, ok := r.pending[s.Task]; ok {
			for j := range held {
				r.count(&held[j])
			}
			delete(r.pending, s.Task)
		}
		r.count(s)
	}
	if len(r.rows) >= 8192 {
		r.write()
	}
}

func (r *Recorder) count(s *Sample) {
	r.fail(r.Aggregate.Add(s))
	r.rows = append(r.rows, toRow(s))
}

// fail notes an error of writing.
func (r *Recorder) fail(err error) {
	if err != nil && r.Err == nil {
		r.Err = fmt.Errorf("write results: %w", err)
	}
}

// retryAfter is how long the recorder waits after an error before it writes again.
const retryAfter = 5 * time.Second

// write writes the rows that are held. After an error it gives the file up: the disk may
// have room for another one later.
func (r *Recorder) write() {
	rows := r.rows
	r.rows = r.rows[:0]
	if len(rows) == 0 {
		return
	}
	if r.Clock().Before(r.retry) {
		r.Unwritten += int64(len(rows))
		return
	}
	err := r.writePart(rows)
	if err == nil {
		return
	}
	r.fail(err)
	r.retry = r.Clock().Add(retryAfter)
	r.Unwritten += int64(len(rows))
	if r.part != nil {
		r.Unwritten += r.part.rows - int64(len(rows))
		r.part.discard()
		r.part = nil
	}
}

func (r *Recorder) writePart(rows []row) (err error) {
	if r.part == nil {
		if r.part, err = createParquet[row](filepath.Join(r.dir, fmt.Sprintf(partName, r.next))); err != nil {
			return err
		}
		r.next++
	}
	if err := r.part.write(rows); err != nil {
		return err
	}
	if r.part.rows >= maxPartRows {
		r.closePart()
	}
	return nil
}

func (r *Recorder) closePart() {
	if r.part == nil {
		return
	}
	rows := r.part.rows
	if err := r.part.close(); err != nil {
		r.fail(err)
		r.Unwritten += rows
		r.retry = r.Clock().Add(retryAfter)
	}
	r.part = nil
}

// Checkpoint completes the file that is being written. When it returns, all that was
// added is durable, except for samples of tasks that are not complete and what Unwritten
// counts.
func (r *Recorder) Checkpoint() {
	r.write()
	r.closePart()
}

// Close completes the files and writes the summary. It returns the first error that
// happened while writing.
func (r *Recorder) Close(s *Summary) error {
	r.Checkpoint()
	r.fail(r.Aggregate.Flush())
	r.fail(r.series.close())
	r.fail(ignoreMissing(os.Remove(filepath.Join(r.dir, reserveName))))
	if s != nil {
		s.fill(r.Aggregate)
		s.Unwritten = r.Unwritten
		if n := len(r.pending); n > 0 {
			s.Problems = append(s.Problems, fmt.Sprintf("%d pulls and pushes had not ended; their requests are left out", n))
		}
		if r.Err != nil {
			s.Problems = append(s.Problems, fmt.Sprintf("%v: %d samples are in no file; the summary counts them", r.Err, r.Unwritten))
		}
		r.fail(s.save(r.dir))
	}
	return r.Err
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// save writes the summary, as a whole or not at all.
func (s *Summary) save(dir string) error {
	b, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, SummaryName), append(b, '\n'))
}

// readPart calls fn for each sample of a file.
func readPart(path string, fn func(*Sample) error) (err error) {
	defer func() {
		if p := recover(); p != nil { // the Parquet reader's way to say that a file is damaged
			err = fmt.Errorf("%s is damaged: %v", filepath.Base(path), p)
		}
	}()
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	r := parquet.NewGenericReader[row](f)
	defer r.Close()
	rows := make([]row, 4096)
	for {
		n, err := r.Read(rows)
		for i := range rows[:n] {
			s := rows[i].sample()
			if s.Outcome >= outcomes {
				return fmt.Errorf("%s has the unknown outcome %q", filepath.Base(path), rows[i].Outcome)
			}
			if err := fn(&s); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", filepath.Base(path), err)
		}
	}
}

// Read calls fn for each sample of a result. The run may still be under way or have been
// ended by force: a file that has its name is complete.
func Read(dir string, fn func(*Sample) error) error {
	parts, err := filepath.Glob(filepath.Join(dir, partGlob))
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return fmt.Errorf("%s has no result: no %s", dir, strings.ReplaceAll(partGlob, "*", "N"))
	}
	slices.Sort(parts)
	for _, p := range parts {
		if err := readPart(p, fn); err != nil {
			return err
		}
	}
	return nil
}
