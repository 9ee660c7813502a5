package page

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"example.org/slipway/registry/catalog/browse"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/web"
)

const (
	// surveyAge is the age from which on a survey is made anew if somebody looks at it.
	surveyAge = 5 * time.Minute
	// surveyShare bounds the time that surveys take: at most one part in 20.
	surveyShare = 20
	// surveyEvery is how often a survey is made once somebody has looked, to record the
	// growth.
	surveyEvery = time.Hour
	// maxGrowth is how many earlier surveys are remembered.
	maxGrowth = 500
	// surveyStep is how many repositories are measured at a time.
	surveyStep = 200
)

// surveyor makes surveys in the background when somebody looks. The zero value lacks only
// measure.
type surveyor struct {
	measure func(context.Context) (*web.Survey, error)

	mu      sync.Mutex // guards the fields below
	closed  bool
	ticker  *time.Timer // starts the next survey if nobody requests it
	survey  *web.Survey
	old     bool // something has changed since
	running bool
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	failed  time.Time
}

// last returns the last survey, and starts another if it is out of date.
func (v *surveyor) last() (*web.Survey, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.running || v.closed || time.Since(v.failed) < surveyAge/5 {
		return v.survey, v.running
	}
	if s := v.survey; s != nil {
		age := time.Since(s.Time)
		if age < s.Took*surveyShare || age < surveyAge && !v.old {
			return s, false
		}
	}
	ctx, cancel := context.WithCancel(context.Background()) // whoever looked may leave
	v.running, v.old, v.cancel = true, false, cancel
	v.wg.Go(func() {
		defer cancel()
		s, err := v.measure(ctx)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.running = false
		if err != nil {
			// The last survey may be out of date, and the next one may succeed.
			v.failed, v.old = time.Now(), true
			v.later()
			return
		}
		if v.survey != nil {
			s.Growth = v.survey.Growth
		}
		s.Growth = append(slices.Clone(s.Growth[max(0, len(s.Growth)-maxGrowth+1):]), web.GrowthPoint{Time: s.Time, Bytes: s.Bytes, PackBytes: s.PackBytes})
		v.survey = s
		v.later()
	})
	return v.survey, true
}

// known returns the last survey and whether another is being made. It starts none.
func (v *surveyor) known() (*web.Survey, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.survey, v.running
}

// later schedules the next survey in an hour. The caller holds mu.
func (v *surveyor) later() {
	if v.ticker == nil && !v.closed {
		v.ticker = time.AfterFunc(surveyEvery, func() {
			v.mu.Lock()
			v.ticker = nil
			v.mu.Unlock()
			if _, pending := v.last(); !pending { // somebody has just started one
				v.mu.Lock()
				defer v.mu.Unlock()
				v.later()
			}
		})
	}
}

// outdate marks the last survey as out of date.
func (v *surveyor) outdate() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.old = true
}

// close ends a survey under way. It also works if the surveyor has never run.
func (v *surveyor) close() {
	v.mu.Lock()
	v.closed = true
	if v.ticker != nil {
		v.ticker.Stop() // a timer that has already fired finds it closed
	}
	if v.cancel != nil {
		v.cancel()
	}
	v.mu.Unlock()
	v.wg.Wait()
}

// measure makes a survey. It reads whole tables of the catalogue, a page at a time.
func (p *system) measure(ctx context.Context) (_ *web.Survey, err error) {
	defer func() {
		if err != nil && ctx.Err() == nil {
			p.o.Logger.Error("what is stored cannot be counted for the web page", "err", err)
		}
	}()
	r, s := p.o.Root, &web.Survey{Time: time.Now()}
	n, err := r.Catalog.Counts(ctx)
	if err != nil {
		return nil, err
	}
	s.Manifests, s.Tags, s.Blobs, s.Bytes = n.Manifests, n.Tags, n.Blobs, n.Bytes
	g, err := gearfacts.NewFiles(r.Catalog.DB).Counts(ctx)
	if err != nil {
		return nil, err
	}
	s.Packs, s.PackBytes, s.Files, s.Indexes = g.Packs, g.PackBytes, g.LiveFiles, g.Layers
	if s.LayerBytes, err = gearfacts.NewLayers(r.Catalog.DB).IndexedBytes(ctx); err != nil {
		return nil, err
	}
	if err := p.measureRepositories(ctx, s); err != nil {
		return nil, err
	}
	if r.Mirrors != nil {
		st, err := r.Mirrors.StatusAndUsage(ctx)
		if err != nil {
			return nil, err
		}
		s.MirrorBytes, s.MirrorsOnly = st.Usage.Bytes, st.Usage.OnlyBytes
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(r.Dir, &fs); err == nil {
		s.FreeBytes, s.DiskBytes = int64(fs.Bavail)*fs.Bsize, int64(fs.Blocks)*fs.Bsize
	}
	s.Took = time.Since(s.Time)
	return s, nil
}

func (p *system) measureRepositories(ctx context.Context, s *web.Survey) error {
	for last := ""; ; {
		page, err := browse.New(p.o.Root.Catalog.DB).RepositorySizes(ctx, last, surveyStep)
		if err != nil {
			return err
		}
		for _, r := range page {
			s.ImageBytes += r.NamedBytes
			s.Repositories = append(s.Repositories, web.RepositorySize{Name: r.Name, Manifests: r.Manifests, Bytes: r.Bytes, OnlyBytes: r.OnlyBytes})
		}
		if len(page) < surveyStep {
			break
		}
		last = page[len(page)-1].Name
	}
	slices.SortFunc(s.Repositories, func(a, b web.RepositorySize) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	return nil
}
