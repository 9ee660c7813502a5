package registry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"example.org/slipway/integration/bench/measure"
)

// fleet holds the servers whose pulls are compared, all with the same content. It lives as long as
// the scenarios that read.
type fleet struct {
	servers []*server
	images  []*image
	tags    map[int]*tagSet
	blobs   bool
}

// serving returns the fleet. The first call starts it.
func (b *bench) serving(ctx context.Context, sc *scenario) (*fleet, error) {
	if b.fleet != nil {
		return b.fleet, nil
	}
	servers, err := b.start(ctx, b.available(sc))
	if err != nil {
		return nil, err
	}
	b.fleet = &fleet{servers: servers, tags: map[int]*tagSet{}}
	return b.fleet, nil
}

func (b *bench) stopFleet() {
	if b.fleet != nil {
		b.stop(b.fleet.servers...)
		b.fleet = nil
	}
}

// of returns the fleet's servers that a scenario compares.
func (f *fleet) of(sc *scenario, r *Results) []*server {
	var out []*server
	for _, name := range sc.rows(r) {
		for _, s := range f.servers {
			if s.Name == name {
				out = append(out, s)
			}
		}
	}
	return out
}

// prepare gives every server some content. It drops a server that does not accept it.
func (b *bench) prepare(ctx context.Context, servers []*server, what string, do func(s *server) error) error {
	for _, s := range servers {
		if s.Binary == "" {
			continue // dropped before
		}
		b.Logf("%s: %s", s.Name, what)
		err := do(s)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			b.drop(s.Spec, fmt.Errorf("%s: %w", what, err))
		}
	}
	b.fleet.forgetDropped()
	return nil
}

// forgetDropped removes the dropped servers from the fleet. They end with the process.
func (f *fleet) forgetDropped() {
	kept := f.servers[:0]
	for _, s := range f.servers {
		if s.Binary == "" {
			s.stop()
			continue
		}
		kept = append(kept, s)
	}
	f.servers = kept
}

// pushers is the number of clients that fill a registry at the same time.
const pushers = 8

// store puts an image into a server of any kind.
func (s *server) store(ctx context.Context, im *image) error {
	if s.Static {
		return tree{filepath.Join(s.Dir, "static")}.image(im)
	}
	return s.pushImage(ctx, im, pushMode{})
}

// needImages stores the small images in every server and pulls each once.
func (b *bench) needImages(ctx context.Context, f *fleet) error {
	if f.images != nil {
		return nil
	}
	for i := range b.results.Run.Scale.Images {
		f.images = append(f.images, smallImage(0, i))
	}
	return b.prepare(ctx, f.servers, fmt.Sprintf("storing %d small images", len(f.images)), func(s *server) error {
		for _, do := range []func(ctx context.Context, w *measure.Worker, i int) (int64, error){
			func(ctx context.Context, _ *measure.Worker, i int) (int64, error) {
				return 0, s.store(ctx, f.images[i])
			},
			func(ctx context.Context, w *measure.Worker, i int) (int64, error) {
				return s.pull(ctx, f.images[i], &w.Buf)
			},
		} {
			if _, err := (measure.Clients{N: pushers, Limit: len(f.images), Do: do}).Run(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// runPull pulls whole images that have been pulled before.
func runPull(b *bench, ctx context.Context, sc *scenario) error {
	f, err := b.serving(ctx, sc)
	if err != nil {
		return err
	}
	if err := b.needImages(ctx, f); err != nil {
		return err
	}
	for _, clients := range []int{1, 4, 10} {
		err := b.slices(ctx, sc, arms(caseClients(clients), f.of(sc, b.results)), clients, func(a arm) func(context.Context, *measure.Worker, int) (int64, error) {
			return func(ctx context.Context, w *measure.Worker, i int) (int64, error) {
				return a.s.pull(ctx, f.images[i%len(f.images)], &w.Buf)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func caseClients(n int) string { return fmt.Sprintf("C=%d", n) }

// headClients is the number of clients that ask for manifests at the same time.
const headClients = 10

// tagCounts are the sizes of the repositories whose tags are requested. A server that
// takes long to store a tag gets only repositories with at most slowTags tags.
var tagCounts = [...]int{10, 1000, 10000}

const slowTags = 1000

func caseTags(n int) string { return fmt.Sprintf("%d tags in the repository", n) }

// runHead asks for manifests by tag, first in many small repositories, then in repositories with
// more and more tags.
func runHead(b *bench, ctx context.Context, sc *scenario) error {
	f, err := b.serving(ctx, sc)
	if err != nil {
		return err
	}
	if err := b.needImages(ctx, f); err != nil {
		return err
	}
	err = b.slices(ctx, sc, arms(caseClients(headClients), f.of(sc, b.results)), headClients, func(a arm) func(context.Context, *measure.Worker, int) (int64, error) {
		return func(ctx context.Context, _ *measure.Worker, i int) (int64, error) {
			im := f.images[i%len(f.images)]
			return 0, a.s.head(ctx, im.repo, imageTag, im.manifest.digest)
		}
	})
	if err != nil {
		return err
	}
	return b.headTags(ctx, sc, f)
}

// headTags asks for the tags of repositories with few and with many tags. The sizes take turns as
// the servers do, because they are compared with each other.
func (b *bench) headTags(ctx context.Context, sc *scenario, f *fleet) error {
	var list []arm
	sets := map[string]*tagSet{}
	for _, n := range tagCounts {
		servers, err := b.needTags(ctx, sc, f, n)
		if err != nil {
			return err
		}
		sets[caseTags(n)] = f.tags[n]
		list = append(list, arms(caseTags(n), servers)...)
	}
	list = slices.DeleteFunc(list, func(a arm) bool { return a.s.Binary == "" }) // dropped meanwhile
	return b.slices(ctx, sc, list, headClients, func(a arm) func(context.Context, *measure.Worker, int) (int64, error) {
		set := sets[a.cas]
		return func(ctx context.Context, _ *measure.Worker, i int) (int64, error) {
			// Any order is suitable that differs from the list's order.
			k := rand.New(rand.NewPCG(uint64(i), uint64(set.n))).IntN(set.n)
			return 0, a.s.head(ctx, set.image.repo, tagName(k), set.digests[k])
		}
	})
}

// needTags makes sure that the servers have the repository with n tags. It returns the
// servers that have it.
func (b *bench) needTags(ctx context.Context, sc *scenario, f *fleet, n int) ([]*server, error) {
	var servers []*server
	for _, s := range f.of(sc, b.results) {
		if s.Name != nameAccessLog && (s.Quick || n <= slowTags || b.results.Run.Full) {
			servers = append(servers, s)
		}
	}
	if f.tags[n] != nil {
		return servers, nil
	}
	set := newTagSet(n)
	f.tags[n] = set
	return servers, b.prepare(ctx, servers, fmt.Sprintf("storing %d tags in one repository", n), func(s *server) error { return s.storeTags(ctx, set) })
}

// storeTags puts a repository with many tags into a server, and asks for each tag once.
func (s *server) storeTags(ctx context.Context, set *tagSet) error {
	if err := s.store(ctx, set.image); err != nil {
		return err
	}
	put := measure.Clients{N: pushers, Limit: set.n, Do: func(ctx context.Context, _ *measure.Worker, i int) (int64, error) {
		return 0, s.putManifest(ctx, set.image.repo, tagName(i), manifestType, set.manifest(i).data)
	}}
	var err error
	if s.Static {
		err = tree{filepath.Join(s.Dir, "static")}.tags(set)
	} else {
		_, err = put.Run(ctx)
	}
	if err != nil {
		return err
	}
	ask := measure.Clients{N: pushers, Limit: set.n, Do: func(ctx context.Context, _ *measure.Worker, i int) (int64, error) {
		return 0, s.head(ctx, set.image.repo, tagName(i), set.digests[i])
	}}
	_, err = ask.Run(ctx)
	return err
}

// blobClients is the number of clients that download large blobs at the same time.
const blobClients = 4

func caseSize(bytes int) string { return fmt.Sprintf("%d MiB", bytes>>20) }

// runBlob downloads large blobs.
func runBlob(b *bench, ctx context.Context, sc *scenario) error {
	f, err := b.serving(ctx, sc)
	if err != nil {
		return err
	}
	if !f.blobs {
		f.blobs = true
		err := b.prepare(ctx, f.of(sc, b.results), "storing blobs of 1, 16 and 128 MiB", func(s *server) error {
			w := &measure.Worker{}
			for _, size := range blobSizes {
				if err := s.store(ctx, b.largeOf(size)); err != nil {
					return err
				}
				// This is the only time that every byte is verified.
				if _, err := s.pull(ctx, b.largeOf(size), &w.Buf); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, size := range blobSizes {
		im := b.largeOf(size)
		err := b.slices(ctx, sc, arms(caseSize(size), f.of(sc, b.results)), blobClients, func(a arm) func(context.Context, *measure.Worker, int) (int64, error) {
			return func(ctx context.Context, w *measure.Worker, _ int) (int64, error) {
				return int64(size), a.s.download(ctx, im.repo, im.blobs[0], w.Chunk)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}
