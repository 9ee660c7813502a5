package starts

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"example.org/slipway/gear"
	"example.org/slipway/gear/predict"
)

// Trace records what happened to the files of an image at its last start, and when. The
// zero value is the trace of an image that was not started.
type Trace struct {
	mu    sync.Mutex
	began time.Time
	over  bool
	// watched says that all opens were seen, not only the opens that reached the pool.
	watched bool
	donor   string
	files   map[gear.Name]*traced
}

// traced is one file. A time is zero if the event has not happened.
type traced struct {
	from                predict.Origin // 0: not predicted
	sibling             bool
	wanted, asked, here time.Time
}

// Begin notes that a start begins, unless one is already running.
func (t *Trace) Begin(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.files == nil || t.over || at.Sub(t.began) >= startFor {
		t.began, t.over, t.watched, t.donor, t.files = at, false, false, "", map[gear.Name]*traced{}
	}
}

// Expect adds predictions to a start that is running.
func (t *Trace) Expect(p Profile) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || t.files == nil {
		return
	}
	for _, f := range p.Files {
		if known := t.files[f.Name]; known == nil {
			t.files[f.Name] = &traced{from: f.From}
		} else if known.from == 0 {
			known.from = f.From
		}
	}
	t.donor = cmp.Or(t.donor, p.Donor)
}

// startFor bounds how long a start lasts if its container never appears.
const startFor = time.Minute

// note calls change to record what happens to a file now, while the start is running.
func (t *Trace) note(name gear.Name, change func(f *traced, now time.Time)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || t.files == nil {
		return
	}
	f := t.files[name]
	if f == nil {
		if len(t.files) >= maxTraced {
			return
		}
		f = &traced{}
		t.files[name] = f
	}
	change(f, time.Now())
}

// maxTraced bounds how many files of a start are reported.
const maxTraced = 2 * MaxFiles

func first(at *time.Time, now time.Time) {
	if at.IsZero() {
		*at = now
	}
}

// Wanted notes that a container opened a file.
func (t *Trace) Wanted(name gear.Name) {
	t.note(name, func(f *traced, now time.Time) { first(&f.wanted, now) })
}

// Asked notes that a file was requested.
func (t *Trace) Asked(name gear.Name) {
	t.note(name, func(f *traced, now time.Time) { first(&f.asked, now) })
}

// Here notes that a file has arrived.
func (t *Trace) Here(name gear.Name) {
	t.note(name, func(f *traced, now time.Time) { first(&f.here, now) })
}

// Sibling notes that a file was requested because another one of its directory was missing.
func (t *Trace) Sibling(name gear.Name) {
	t.note(name, func(f *traced, _ time.Time) { f.sibling = true })
}

// End notes that the start is over, and whether all opens were seen.
func (t *Trace) End(watched bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over, t.watched = true, watched
}

// Start describes the last start of an image.
type Start struct {
	Began time.Time `json:"began"`
	// Over says that the start is over. Watched says that all opens were seen. If they
	// were not, files that were already local may have been opened unseen, and Quality is
	// unknown.
	Over    bool `json:"over"`
	Watched bool `json:"watched"`
	// Donor is the manifest of the image from which the prediction was inherited.
	Donor   string  `json:"donor,omitempty"`
	Quality Quality `json:"quality"`
	Files   []File  `json:"files"`
}

// File is what happened to a file at a start. Times are relative to the beginning of
// the start. A time is nil if the event did not happen.
type File struct {
	Name gear.Name `json:"-"`
	Path string    `json:"path"`
	Size int64     `json:"size"`
	// From is the reason for predicting the file: an origin of package predict,
	// "sibling", or empty.
	From   string         `json:"from,omitempty"`
	Wanted *time.Duration `json:"wanted_ns,omitempty"`
	Asked  *time.Duration `json:"asked_ns,omitempty"`
	Here   *time.Duration `json:"here_ns,omitempty"`
}

// Quality says how good a prediction was.
type Quality struct {
	// Predicted counts the predicted files, which have PredictedBytes. Hit of them were
	// wanted. Missed counts files that were wanted but not predicted.
	Predicted      int   `json:"predicted"`
	PredictedBytes int64 `json:"predicted_bytes"`
	Hit            int   `json:"hit"`
	HitBytes       int64 `json:"hit_bytes"`
	Missed         int   `json:"missed"`
	MissedBytes    int64 `json:"missed_bytes"`
	// WastedBytes counts bytes that were fetched for the start and that nobody wanted.
	WastedBytes int64 `json:"wasted_bytes"`
}

// Precision returns the share of the predicted bytes that was wanted. It is 1 if nothing
// was predicted.
func (q *Quality) Precision() float64 {
	if q.PredictedBytes == 0 {
		return 1
	}
	return float64(q.HitBytes) / float64(q.PredictedBytes)
}

// add counts a file of a start.
func (q *Quality) add(f *File) {
	if f.From != "" {
		q.Predicted++
		q.PredictedBytes += f.Size
	}
	switch {
	case f.Wanted != nil && f.From != "":
		q.Hit++
		q.HitBytes += f.Size
	case f.Wanted != nil:
		q.Missed++
		q.MissedBytes += f.Size
	case f.Asked != nil:
		q.WastedBytes += f.Size
	}
}

// Start returns what is known about the last start of an image with an index, or nil if
// there was none.
func (t *Trace) Start(x *gear.Index) *Start {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.files == nil {
		return nil
	}
	out := &Start{Began: t.began, Over: t.over, Watched: t.watched, Donor: t.donor}
	had := map[gear.Name]bool{}
	for i := range x.Entries {
		e := &x.Entries[i]
		if e.File < 0 {
			continue
		}
		f := &x.Files[e.File]
		if was := t.files[f.Name]; was != nil && !had[f.Name] {
			had[f.Name] = true
			out.Files = append(out.Files, was.told(t.began, f, e.Path))
		}
	}
	slices.SortStableFunc(out.Files, func(a, b File) int { return cmp.Compare(a.begins(), b.begins()) })
	for i := range out.Files {
		out.Quality.add(&out.Files[i])
	}
	return out
}

// told returns the file in the form in which a start reports it.
func (f *traced) told(began time.Time, of *gear.File, path string) File {
	out := File{Name: of.Name, Path: path, Size: of.Size}
	switch {
	case f.from != 0:
		out.From = f.from.String()
	case f.sibling:
		out.From = "sibling"
	}
	since := func(at time.Time) *time.Duration {
		if at.IsZero() {
			return nil
		}
		return new(at.Sub(began))
	}
	out.Wanted, out.Asked, out.Here = since(f.wanted), since(f.asked), since(f.here)
	return out
}

// begins returns when the first thing happened to a file.
func (f *File) begins() time.Duration {
	least := time.Duration(1<<63 - 1)
	for _, d := range []*time.Duration{f.Wanted, f.Asked, f.Here} {
		if d != nil {
			least = min(least, *d)
		}
	}
	return least
}
