package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/bench/rival"
)

const (
	manyTagsRepo = "many/tags"
	// tagsPerPut is the number of tags that Slipway sets with one PUT.
	tagsPerPut = 100
)

func manyRepo(i int) string { return fmt.Sprintf("many/r%07d", i) }

// emptyIndex returns an index of no image, which is the smallest thing that a tag can
// point at. The index differs for every number.
func emptyIndex(kind string, i int) blob {
	return newBlob(fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[],"annotations":{"%s":"%d"}}`, indexType, kind, i))
}

// manyCatalogue returns the directory of a stopped Slipway that holds many tags in one repository,
// and many repositories. The first call makes it.
func (b *bench) manyCatalogue(ctx context.Context, sp *rival.Spec) (string, error) {
	dir := filepath.Join(b.Dir, "many-"+strings.ReplaceAll(sp.Name, " ", "-"))
	if _, err := os.Stat(filepath.Join(dir, "done")); err == nil {
		return dir, nil
	}
	s, err := startServer(ctx, sp, dir)
	if err != nil {
		return "", err
	}
	defer s.stop()
	scale := b.results.Run.Scale
	b.Logf("%s: storing %d tags in one repository", s.Name, scale.Tags)
	tags := measure.Clients{N: pushers, Limit: scale.Tags / tagsPerPut, Do: func(ctx context.Context, _ *measure.Worker, i int) (int64, error) {
		index, query := emptyIndex("tags", i), url.Values{}
		for k := range tagsPerPut {
			query.Add("tag", tagName(i*tagsPerPut+k))
		}
		return 0, s.putManifest(ctx, manyTagsRepo, index.digest+"?"+query.Encode(), indexType, index.data)
	}}
	if _, err := tags.Run(ctx); err != nil {
		return "", err
	}
	b.Logf("%s: storing %d repositories", s.Name, scale.Repos)
	repos := measure.Clients{N: 2 * pushers, Limit: scale.Repos, Do: func(ctx context.Context, _ *measure.Worker, i int) (int64, error) {
		return 0, s.putManifest(ctx, manyRepo(i), imageTag, indexType, emptyIndex("repo", i).data)
	}}
	if _, err := repos.Run(ctx); err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "done"), nil, 0o644)
}

const (
	caseStartEmpty = "empty"
	caseStartWarm  = "all tags"
	caseStartCold  = "all tags, files not in the page cache"
)

// runStart starts a server on an empty store and on a store with many tags.
func runStart(b *bench, ctx context.Context, sc *scenario) error {
	for _, sp := range b.available(sc) {
		dir, err := b.manyCatalogue(ctx, sp)
		if err != nil {
			return err
		}
		for round := 1; round <= b.Run.Rounds; round++ {
			for _, cas := range []string{caseStartEmpty, caseStartWarm, caseStartCold} {
				sample, err := b.timeStart(ctx, sp, dir, cas)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				b.record(sc, cas, sp.Name, round, sample, err)
			}
		}
	}
	return nil
}

// timeStart starts a server and measures until it is ready and has answered a request for a tag.
func (b *bench) timeStart(ctx context.Context, sp *rival.Spec, dir, cas string) (Sample, error) {
	switch cas {
	case caseStartEmpty:
		dir = b.NewDir()
		defer os.RemoveAll(dir)
	case caseStartCold:
		if err := dropFromPageCache(filepath.Join(dir, "root")); err != nil {
			return Sample{}, err
		}
	}
	m, err := measure.NewMeter()
	if err != nil {
		return Sample{}, err
	}
	s, err := startServer(ctx, sp, dir)
	if err != nil {
		return Sample{}, err
	}
	defer s.stop()
	if cas != caseStartEmpty {
		last := b.results.Run.Scale.Tags - 1
		if err := s.head(ctx, manyTagsRepo, tagName(last), emptyIndex("tags", last/tagsPerPut).digest); err != nil {
			return Sample{}, err
		}
	}
	m.PIDs = []int{s.Process.Pid()} // everything that the process has used so far counts
	u, err := m.Stop()
	if err != nil {
		return Sample{}, err
	}
	sample := usageSample(u)
	sample.Ops = 1
	sample.RSS, sample.PeakRSS, err = s.Memory()
	return sample, err
}

// dropFromPageCache makes the kernel forget the pages of a directory's files.
func dropFromPageCache(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Sync(); err != nil { // the kernel can only drop what is on disk
			return err
		}
		const dontNeed = 4 // POSIX_FADV_DONTNEED
		if _, _, errno := syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, dontNeed, 0, 0); errno != 0 {
			return fmt.Errorf("drop %s from the page cache: %w", path, errno)
		}
		return nil
	})
}

// pageSize is the number of names on a page of the list scenario.
const pageSize = 100

const (
	listTags         = "tags"
	listRepositories = "repositories"
)

func caseList(list, where string) string { return list + ", page at the " + where }

// listPlaces are the places where pages are read.
var listPlaces = [...]string{"beginning", "middle", "end"}

// runLists reads pages of the lists of tags and repositories.
func runLists(b *bench, ctx context.Context, sc *scenario) error {
	for _, sp := range b.available(sc) {
		dir, err := b.manyCatalogue(ctx, sp)
		if err != nil {
			return err
		}
		s, err := startServer(ctx, sp, dir)
		if err != nil {
			return err
		}
		err = errors.Join(
			b.readPages(ctx, sc, s, listTags, "/v2/"+manyTagsRepo+"/tags/list", b.results.Run.Scale.Tags, tagName),
			// The repository with the tags is the last in the list.
			b.readPages(ctx, sc, s, listRepositories, "/v2/_catalog", b.results.Run.Scale.Repos, manyRepo))
		s.stop()
		if err != nil {
			return err
		}
	}
	return nil
}

// readPages reads pages of a list of n names, at its beginning, middle and end.
func (b *bench) readPages(ctx context.Context, sc *scenario, s *server, list, path string, n int, name func(int) string) error {
	first := map[string]int{"beginning": 0, "middle": n / 2, "end": n - pageSize}
	for round := 1; round <= b.Run.Rounds; round++ {
		for i := range listPlaces {
			if round%2 == 0 {
				i = len(listPlaces) - 1 - i
			}
			at := first[listPlaces[i]]
			last := ""
			if at > 0 {
				last = name(at - 1)
			}
			sample, err := measureLoad(ctx, s, measure.Clients{N: 1, Least: b.slice / 2, Do: func(ctx context.Context, w *measure.Worker, _ int) (int64, error) {
				names, err := s.page(ctx, path, list, pageSize, last, &w.Buf)
				if err != nil {
					return 0, err
				}
				if len(names) != pageSize || names[0] != name(at) || names[pageSize-1] != name(at+pageSize-1) {
					return 0, fmt.Errorf("page of %s behind %q: %d names, not those it should have", list, last, len(names))
				}
				return 0, nil
			}})
			if ctx.Err() != nil {
				return ctx.Err()
			}
			b.record(sc, caseList(list, listPlaces[i]), s.Name, round, sample, err)
		}
	}
	return nil
}
