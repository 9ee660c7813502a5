package synth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/store"
)

// Output is where a trace goes: either or both.
type Output struct {
	// Store is the directory of a store. It may exist, but not have the zones yet.
	Store string
	// Archive is a directory for files in the form of the public archive.
	Archive string
	// Done counts the records as they are written. May be nil.
	Done *atomic.Int64
}

// storeMemory is the memory for each zone that is generated at the same time, in bytes.
const storeMemory = 128 << 20

// Write makes a trace of several zones. o.Requests are divided among them as in the
// profiles. What is complete when it fails, or when ctx is done, stays and can be read.
func Write(ctx context.Context, profiles []*Profile, o *Options, out *Output) (err error) {
	if err := out.check(profiles); err != nil {
		return err
	}
	requests, err := Plan(profiles, o)
	if err != nil {
		return err
	}
	jobs := make([]Job, 0, len(profiles))
	var w *store.Writer
	if out.Store != "" {
		if w, err = store.NewWriter(out.Store, &store.WriterOptions{Memory: storeMemory}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.Close()) }() // after its parts
	}
	var closers []func() error
	defer func() {
		for _, c := range closers {
			err = errors.Join(err, c())
		}
	}()
	for i, p := range profiles {
		if requests[i] == 0 {
			continue // so few requests that this zone has none
		}
		job := Job{Profile: p, Options: *o}
		job.Options.Requests = requests[i]
		if job.Options, err = job.Options.complete(p); err != nil {
			return err
		}
		s, err := newSink(p, o.Seed, out, w)
		if err != nil {
			return err
		}
		closers = append(closers, s.close)
		job.Add, job.Done = s.add, s.close
		jobs = append(jobs, job)
	}
	return GenerateAll(ctx, jobs)
}

// Plan returns how many requests [Write] makes of each profile.
func Plan(profiles []*Profile, o *Options) ([]int64, error) {
	if o.Requests > 0 {
		return spread(o.Requests, profiles), nil
	}
	requests := make([]int64, len(profiles))
	for i, p := range profiles {
		c, err := o.complete(p)
		if err != nil {
			return nil, err
		}
		requests[i] = c.Requests
	}
	return requests, nil
}

func (out *Output) check(profiles []*Profile) error {
	if out.Store == "" && out.Archive == "" {
		return fmt.Errorf("no output for the trace")
	}
	names := map[string]bool{}
	for _, p := range profiles {
		if err := p.Validate(); err != nil {
			return err
		}
		if names[p.Zone] {
			return fmt.Errorf("zone %s is named twice", p.Zone)
		}
		names[p.Zone] = true
	}
	if out.Archive != "" {
		for _, p := range profiles {
			if err := checkArchive(out.Archive, p); err != nil {
				return err
			}
		}
	}
	if out.Store == "" {
		return nil
	}
	if _, err := os.Stat(out.Store); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if entries, err := filepath.Glob(filepath.Join(out.Store, "*")); err == nil && len(entries) == 0 {
		return nil
	}
	s, err := store.Open(out.Store)
	if err != nil {
		return err
	}
	defer s.Close() //nolint:errcheck // read only
	for _, z := range s.Zones() {
		for _, p := range profiles {
			if p.Zone == z.Name {
				return fmt.Errorf("store %s has requests of zone %s already", out.Store, z.Name)
			}
		}
	}
	return nil
}

// sink writes the records of one zone.
type sink struct {
	zone    string
	store   *store.Writer
	archive *ArchiveWriter
	done    *atomic.Int64
	pending int64
}

// newSink opens the outputs of a zone. The store's part of w, which is nil without a
// store, lets zones be written at once.
func newSink(p *Profile, seed uint64, out *Output, w *store.Writer) (*sink, error) {
	s := &sink{zone: p.Zone, done: out.Done}
	var err error
	if out.Archive != "" {
		if s.archive, err = NewArchiveWriter(out.Archive, p, seed); err != nil {
			return nil, err
		}
	}
	if w != nil {
		if s.store, err = w.Part(p.Zone); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *sink) add(r *trace.Record) error {
	if s.store != nil {
		if err := s.store.Add(s.zone, r); err != nil {
			return err
		}
	}
	if s.archive != nil {
		if err := s.archive.Add(r); err != nil {
			return err
		}
	}
	if s.pending++; s.pending == 1<<12 {
		s.count()
	}
	return nil
}

func (s *sink) count() {
	if s.done != nil {
		s.done.Add(s.pending)
	}
	s.pending = 0
}

// close completes the files. It may be called again.
func (s *sink) close() error {
	s.count()
	var err error
	if s.store != nil {
		err = s.store.Close()
	}
	if s.archive != nil {
		err = errors.Join(err, s.archive.Close())
	}
	s.store, s.archive = nil, nil
	return err
}
