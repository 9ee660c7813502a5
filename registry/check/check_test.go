package check_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"example.org/slipway/registry/check"

	"example.org/slipway/registry/registrytest"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
	"example.org/slipway/registry/storage"
)

// TestFsckFinds breaks the registry in one way at a time. want is what a check finds, mended what
// the repair reports, and left what a check after it finds.
func TestFsckFinds(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	tests := []struct {
		name               string
		break_             func(p *registrytest.Planted)
		want, mended, left []string
		// heal pushes again what is gone, after which no problem is left.
		heal func(p *registrytest.Planted)
	}{
		{name: "nothing", break_: func(*registrytest.Planted) {}},
		{
			name:   "object missing",
			break_: func(p *registrytest.Planted) { p.Delete(storage.BlobKey(p.Large.Digest)) },
			want:   []string{"content-missing"},
			mended: []string{"content-missing repaired", "image-incomplete", "image-incomplete"},
			left:   []string{"image-incomplete", "image-incomplete"},
			// The content is shown again in both repositories, whichever it was pushed to.
			heal: func(p *registrytest.Planted) { p.PushBytes("a", registrytest.Content(1+1<<32, 100_000)) },
		},
		{
			name: "object corrupt",
			break_: func(p *registrytest.Planted) {
				p.Overwrite(storage.BlobKey(p.Large.Digest), registrytest.Content(9, 100_000))
			},
			want:   []string{"content-corrupt"},
			mended: []string{"content-corrupt repaired", "image-incomplete", "image-incomplete"},
			left:   []string{"image-incomplete", "image-incomplete"},
			// The content is shown again in both repositories, whichever it was pushed to.
			heal: func(p *registrytest.Planted) { p.PushBytes("b", registrytest.Content(1+1<<32, 100_000)) },
		},
		{
			name: "object cut short",
			break_: func(p *registrytest.Planted) {
				p.Overwrite(storage.BlobKey(p.Large.Digest), registrytest.Content(1+1<<32, 100_000)[:999])
			},
			want:   []string{"content-corrupt"},
			mended: []string{"content-corrupt repaired", "image-incomplete", "image-incomplete"},
			left:   []string{"image-incomplete", "image-incomplete"},
		},
		{
			name: "inline content corrupt",
			break_: func(p *registrytest.Planted) {
				p.SQL(`UPDATE blobs SET content = zeroblob(5000) WHERE digest = ` + registrytest.Quote(p.Small.Digest))
			},
			want:   []string{"content-corrupt"},
			mended: []string{"content-corrupt repaired", "image-incomplete"},
			left:   []string{"image-incomplete"},
			heal:   func(p *registrytest.Planted) { p.PushBytes("a", registrytest.Content(1, 5000)) },
		},
		{
			name: "manifest corrupt",
			break_: func(p *registrytest.Planted) {
				p.SQL(`UPDATE blobs SET content = replace(content, 'layers', 'lasers') WHERE digest = ` + registrytest.Quote(p.A.Digest))
			},
			want:   []string{"content-corrupt"},
			mended: []string{"content-corrupt repaired", "image-incomplete"},
			left:   []string{"image-incomplete"},
			heal: func(p *registrytest.Planted) {
				p.PushManifest("a", registrytest.ImageOf(p.Config, p.Small, p.Large), "v1")
			},
		},
		{
			name: "manifest corrupt beside a good object",
			break_: func(p *registrytest.Planted) {
				m, err := p.GetManifest(p.T.Context(), "a", "v1")
				if err != nil {
					p.T.Fatal(err)
				}
				p.Overwrite(storage.BlobKey(p.A.Digest), m.Bytes)
				p.SQL(`UPDATE blobs SET content = x'00' WHERE digest = ` + registrytest.Quote(p.A.Digest))
			},
			want:   []string{"content-corrupt", "object-duplicate"},
			mended: []string{"content-corrupt repaired", "object-duplicate repaired"},
		},
		{
			name: "manifest not inline",
			break_: func(p *registrytest.Planted) {
				m, err := p.GetManifest(p.T.Context(), "a", "v1")
				if err != nil {
					p.T.Fatal(err)
				}
				p.Overwrite(storage.BlobKey(p.A.Digest), m.Bytes)
				p.SQL(`UPDATE blobs SET content = NULL WHERE digest = ` + registrytest.Quote(p.A.Digest))
			},
			want:   []string{"manifest-not-inline"},
			mended: []string{"manifest-not-inline repaired", "object-duplicate repaired"},
		},
		{
			name: "sizes wrong",
			break_: func(p *registrytest.Planted) {
				p.SQL(`UPDATE blobs SET size = size + 1 WHERE digest IN (` + registrytest.Quote(p.Large.Digest) + `, ` + registrytest.Quote(p.Small.Digest) + `)`)
			},
			want:   []string{"size-wrong", "size-wrong"},
			mended: []string{"size-wrong repaired", "size-wrong repaired"},
		},
		{
			name: "references missing",
			break_: func(p *registrytest.Planted) {
				p.SQL(`DELETE FROM refs WHERE blob_id = (SELECT id FROM blobs WHERE digest = ` + registrytest.Quote(p.Large.Digest) + `)`)
			},
			want:   []string{"references-wrong", "references-wrong"},
			mended: []string{"references-wrong repaired", "references-wrong repaired"},
		},
		{
			name: "references to too much",
			break_: func(p *registrytest.Planted) {
				p.SQL(`INSERT INTO refs (repo_id, blob_id, manifest_id) SELECT m.repo_id, b.id, m.id FROM manifests m, blobs b
					WHERE m.blob_id = (SELECT id FROM blobs WHERE digest = ` + registrytest.Quote(p.B.Digest) + `) AND b.digest = ` + registrytest.Quote(p.Small.Digest))
			},
			want:   []string{"references-wrong"},
			mended: []string{"references-wrong repaired"},
		},
		{
			name: "links missing",
			break_: func(p *registrytest.Planted) {
				p.SQL(`DELETE FROM links WHERE blob_id = (SELECT id FROM blobs WHERE digest = ` + registrytest.Quote(p.Large.Digest) + `)`)
			},
			want:   []string{"content-not-linked", "content-not-linked"},
			mended: []string{"content-not-linked repaired", "content-not-linked repaired"},
		},
		{
			name: "rows that dangle",
			break_: func(p *registrytest.Planted) {
				p.SQL(`INSERT INTO links (repo_id, blob_id, created_at) VALUES (1, 777, 0), (777, 1, 0)`,
					`INSERT INTO refs (repo_id, blob_id, manifest_id) VALUES (1, 777, 1), (1, 1, 777)`,
					`INSERT INTO tags (repo_id, name, manifest_id, updated_at, pulled_at) VALUES (1, 'ghost', 777, 0, 0), (777, 'ghost', 1, 0, 0)`,
					`INSERT INTO manifests (id, repo_id, blob_id, media_type, artifact_type, created_at, pulled_at) VALUES (1000, 777, 1, '', '', 0, 0), (1001, 1, 777, '', '', 0, 0)`,
					`INSERT INTO tags (repo_id, name, manifest_id, updated_at, pulled_at) VALUES (777, 'gone', 1000, 0, 0)`,
					`INSERT INTO gc_queue (kind, repo_id, blob_id, due_at) VALUES (0, 777, 1, 0), (5, 1, 1, 0)`)
			},
			want: slices.Repeat([]string{"dangling-row"}, 11),
			// A tag goes with its manifest, and so does everything queued for its repository.
			mended: slices.Repeat([]string{"dangling-row repaired"}, 9),
		},
		{
			name: "orphans",
			break_: func(p *registrytest.Planted) {
				p.Overwrite(storage.BlobKey(oci.SHA256([]byte("orphan"))), []byte("orphan"))
				p.Overwrite("docker/registry/v2/blobs/sha256/ab/strange", []byte("x"))
				p.Overwrite("slipway/verify/0123", []byte("x"))
			},
			want:   []string{"object-unknown", "object-unknown"},
			mended: []string{"object-unknown repaired", "object-unknown repaired"},
		},
		{
			name: "leaks",
			break_: func(p *registrytest.Planted) {
				p.SQL(`INSERT INTO blobs (digest, size, state, content, created_at) VALUES (` + registrytest.Quote(oci.SHA256([]byte("leak"))) + `, 4, 1, 'leak', 0)`)
			},
			want:   []string{"content-leaked"},
			mended: []string{"content-leaked repaired"},
		},
		{
			name: "manifest that is none",
			break_: func(p *registrytest.Planted) {
				doc := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json"}`)
				p.SQL(`INSERT INTO blobs (id, digest, size, state, content, created_at) VALUES (500, `+registrytest.Quote(oci.SHA256(doc))+fmt.Sprintf(`, %d, 1, x'%x', 0)`, len(doc), doc),
					`INSERT INTO manifests (repo_id, blob_id, media_type, artifact_type, created_at, pulled_at) VALUES (1, 500, '', '', 0, 0)`)
			},
			want:   []string{"manifest-malformed"},
			mended: []string{"manifest-malformed"},
			left:   []string{"manifest-malformed"},
		},
		{
			name: "child of an index deleted",
			break_: func(p *registrytest.Planted) {
				m, err := p.GetManifest(p.T.Context(), "b", "v2")
				if err != nil {
					p.T.Fatal(err)
				}
				var doc registrytest.Image
				if err := json.Unmarshal(m.Bytes, &doc); err != nil {
					p.T.Fatal(err)
				}
				if err := p.DeleteManifest(p.T.Context(), "b", doc.Manifests[0].Digest); err != nil {
					p.T.Fatal(err)
				}
			},
			want:   []string{"image-incomplete"},
			mended: []string{"image-incomplete"},
			left:   []string{"image-incomplete"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := registrytest.Plant(t)
			registrytest.Reachable(t, p) // into RAM
			test.break_(p)
			wanted := func(doing string, got check.Report, want []string) {
				t.Helper()
				if diff := cmp.Diff(append([]string{}, want...), registrytest.Kinds(got)); diff != "" {
					t.Errorf("%s (-want +got):\n%s\n%+v", doing, diff, got.Problems)
				}
			}
			wanted("check", p.Check(check.Options{}), test.want)
			rep := p.Check(check.Options{Repair: true})
			wanted("repair", rep, test.mended)
			left := p.Check(check.Options{})
			wanted("check after the repair", left, test.left)
			if left.Clean() != (len(test.left) == 0) {
				t.Errorf("Clean is %v with %v", left.Clean(), registrytest.Kinds(left))
			}
			if test.heal != nil {
				test.heal(p)
				wanted("check after the push", p.Check(check.Options{}), nil)
				registrytest.Reachable(t, p)
			}
		})
	}
}

// TestFsckQuarantine follows a corrupt blob: which images it hurts, what clients see, and where the
// bytes go.
func TestFsckQuarantine(t *testing.T) {
	p := registrytest.Plant(t)
	ctx := t.Context()
	registrytest.Reachable(t, p)
	bad := registrytest.Content(9, 100_000)
	p.Overwrite(storage.BlobKey(p.Large.Digest), bad)
	var last check.Report
	rep := p.Check(check.Options{Repair: true, Parallel: 2, Progress: func(r check.Report) { last = r }})
	if diff := cmp.Diff(rep, last); diff != "" {
		t.Errorf("the last progress is not the report (-report +progress):\n%s", diff)
	}
	if rep.Contents != rep.ContentsTotal || rep.Bytes != rep.BytesTotal || rep.Manifests != rep.ManifestsTotal || rep.Manifests != 3 {
		t.Errorf("the report does not add up: %+v", rep)
	}
	i := slices.IndexFunc(rep.Problems, func(p check.Problem) bool { return p.Kind == check.ProblemCorrupt })
	if got := rep.Problems[i]; got.Digest != p.Large.Digest || got.Key != storage.BlobKey(p.Large.Digest) ||
		!slices.Contains(got.Hurts, "a:v1") || !slices.Contains(got.Hurts, "b:v2") {
		t.Errorf("got %+v, want it to hurt a:v1 and b:v2", got)
	}
	for _, repo := range []string{"a", "b"} {
		if _, err := p.ResolveBlob(ctx, repo, p.Large.Digest); !oci.HasCode(err, oci.CodeBlobUnknown) {
			t.Errorf("HEAD in %s: %v", repo, err)
		}
	}
	if _, err := p.GetManifest(ctx, "a", "v1"); err != nil {
		t.Errorf("the manifest went too: %v", err)
	}
	obj, err := p.Store.Get(ctx, "slipway/quarantine/sha256/"+p.Large.Digest.Encoded(), 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer obj.Close()
	var kept bytes.Buffer
	if _, err := obj.WriteTo(&kept); err != nil || !bytes.Equal(kept.Bytes(), bad) {
		t.Errorf("the quarantine holds %d bytes (%v), want the corrupt object", kept.Len(), err)
	}
	if _, err := p.Store.Stat(ctx, storage.BlobKey(p.Large.Digest)); err == nil {
		t.Error("the corrupt object is still there")
	}
	p.PushBytes("a", registrytest.Content(1+1<<32, 100_000))
	if b, err := registrytest.ReadBlob(ctx, p, "a", p.Large.Digest); err != nil || oci.SHA256(b) != p.Large.Digest {
		t.Errorf("after the push: %v", err)
	}
}

func TestFsckQuickReadsNoObjects(t *testing.T) {
	p := registrytest.Plant(t)
	p.Overwrite(storage.BlobKey(p.Large.Digest), registrytest.Content(9, 100_000)) // the new bytes have the right size
	if rep := p.Check(check.Options{Quick: true}); len(rep.Problems) > 0 || rep.Bytes != rep.BytesTotal {
		t.Errorf("got %+v, want nothing found and all bytes counted", rep)
	}
	p.Overwrite(storage.BlobKey(p.Large.Digest), registrytest.Content(9, 10))
	if got := registrytest.Kinds(p.Check(check.Options{Quick: true})); !slices.Equal(got, []string{"content-corrupt"}) {
		t.Errorf("got %v", got)
	}
}

func TestFsckDamagedCatalog(t *testing.T) {
	p := registrytest.Plant(t)
	p.Delete(storage.BlobKey(p.Large.Digest))
	// An index lacks these rows, because it is taken out of the schema and put back after they were
	// added.
	p.SQL(`PRAGMA writable_schema = ON`,
		`CREATE TABLE kept AS SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master WHERE name = 'links_blob'`,
		`DELETE FROM sqlite_master WHERE name = 'links_blob'`)
	p.SQL(`INSERT INTO links (repo_id, blob_id, created_at) SELECT 1, id, 0 FROM blobs WHERE true ON CONFLICT DO NOTHING`)
	p.SQL(`PRAGMA writable_schema = ON`, `INSERT INTO sqlite_master SELECT * FROM kept`)
	rep := p.Check(check.Options{Repair: true})
	if rep.Counts[check.ProblemCatalog] == 0 || rep.Counts[check.ProblemMissing] != 1 || len(rep.Repaired) != 0 {
		t.Errorf("got %v with %v repaired, want the damage found and nothing repaired", rep.Counts, rep.Repaired)
	}
}

// TestFsckKeepsDistributionsObjects checks that objects in an adopted storage that only Distribution
// may need are neither touched nor a problem.
func TestFsckKeepsDistributionsObjects(t *testing.T) {
	p := registrytest.Plant(t)
	key := storage.BlobKey(oci.SHA256([]byte("orphan")))
	p.Overwrite("docker/registry/v2/repositories/x/_layers/sha256/"+p.Large.Digest.Encoded()+"/link", []byte(p.Large.Digest))
	p.Overwrite(key, []byte("orphan"))
	m, err := p.GetManifest(t.Context(), "a", "v1")
	if err != nil {
		t.Fatal(err)
	}
	p.Overwrite(storage.BlobKey(p.A.Digest), m.Bytes)
	for _, o := range []check.Options{{}, {Quick: true}, {Repair: true}} {
		if rep := p.Check(o); !rep.Clean() || rep.Foreign != 1 || rep.ForeignBytes != 6 {
			t.Errorf("%+v: got %v, %d foreign objects of %d bytes; want one of 6 bytes and no problem", o, registrytest.Kinds(rep), rep.Foreign, rep.ForeignBytes)
		}
	}
	for _, key := range []string{key, storage.BlobKey(p.A.Digest)} {
		if _, err := p.Store.Stat(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
}

// flaky is a store whose Get fails.
type flaky struct {
	objstore.Store
	mu    sync.Mutex
	fails int
}

func (s *flaky) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails > 0 && strings.HasSuffix(key, "/data") {
		s.fails--
		return nil, fmt.Errorf("the network is down")
	}
	return s.Store.Get(ctx, key, off, n)
}

func TestFsckUnreadable(t *testing.T) {
	store := &flaky{Store: memstore.New(nil)}
	b := newBed(t, store, registry.Options{})
	_, _, _, large := b.PushImage("a", 1, "v1")
	for fails, want := range map[int][]string{1: {}, 2: {"content-unreadable"}} {
		store.fails = fails
		if got := registrytest.Kinds(b.Check(check.Options{Repair: true})); !slices.Equal(got, want) {
			t.Errorf("after %d failures: %v, want %v", fails, got, want)
		}
	}
	if _, err := registrytest.ReadBlob(t.Context(), b, "a", large.Digest); err != nil {
		t.Errorf("the blob was taken away: %v", err)
	}
}

// TestFsckWhileServing checks and repairs while clients push and delete and the collector runs.
// Unfinished work must not count as a problem.
func TestFsckWhileServing(t *testing.T) {
	b := newDiskBed(t)
	c := b.Churn(3)
	c.Until(func() {
		if rep := b.Check(check.Options{Repair: true}); len(rep.Problems) > 0 {
			t.Errorf("found %+v", rep.Problems)
		}
	})
	c.Stop()
	registrytest.Reachable(t, b)
}
