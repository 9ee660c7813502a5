package catalog_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/browse"
	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/engine"
	"example.org/slipway/registry/catalog/gearfacts"
	"example.org/slipway/registry/catalog/repair"
	"example.org/slipway/registry/catalog/snapshot"
)

// script calls methods of a catalogue and records their results.
type script struct {
	t   *testing.T
	c   *catalog.Catalog
	now time.Time
	out []string
}

// note records a call's result in a form that both databases share.
func (s *script) note(what string, err error, got ...any) {
	s.t.Helper()
	b, jsonErr := json.Marshal(got)
	if jsonErr != nil {
		s.t.Fatal(jsonErr)
	}
	// PostgreSQL allows no NUL and only valid UTF-8 in text. SQLite does not distinguish empty
	// bytes from none when they are read.
	same := strings.NewReplacer(`\u0000`, "\uFFFD", `\ufffd`, "\uFFFD", `"Content":null`, `"Content":""`)
	line := fmt.Sprintf("%s: %s", what, same.Replace(string(b)))
	if err != nil {
		line += " error " + err.Error()
	}
	s.out = append(s.out, line)
}

func contentOf(i int) ([]byte, oci.Digest) {
	b := fmt.Appendf(nil, "content %d", i)
	return b, oci.SHA256(b)
}

// TestSameAnswers checks that both databases give the same answers to a long series of calls.
func TestSameAnswers(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	var outs [][]string
	servers.OnBoth(t, func(t *testing.T, base *catalogtest.Bed) {
		s := &script{t: t, now: time.UnixMilli(1_700_000_000_000)}
		s.c = open(t, base, &catalog.Options{Clock: func() time.Time { return s.now }, Grace: time.Hour})
		s.push()
		s.readAll()
		s.optional()
		s.repairs()
		s.dangling()
		s.gear()
		s.retention()
		s.mirror()
		s.rest()
		for _, line := range s.out {
			if strings.Contains(line, "SQL") {
				t.Error(line)
			}
		}
		outs = append(outs, s.out)
	})
	if t.Failed() || len(outs) != 2 {
		return
	}
	if diff := cmp.Diff(outs[0], outs[1]); diff != "" {
		t.Errorf("SQLite and PostgreSQL differ (-sqlite +postgres):\n%s", diff)
	}
}

// manifestOf returns a manifest of the contents with the numbers from to to.
func manifestOf(name string, from, to int, tags ...string) catalog.NewManifest {
	m := catalog.NewManifest{Manifest: catalog.Manifest{MediaType: "application/vnd.oci.image.manifest.v1+json", Content: []byte("manifest " + name)}, Tags: tags}
	m.Digest = oci.SHA256(m.Content)
	for i := from; i < to; i++ {
		_, d := contentOf(i)
		m.Blobs = append(m.Blobs, d)
	}
	return m
}

func (s *script) push() {
	ctx := s.t.Context()
	for i := range 40 {
		b, d := contentOf(i)
		blob := catalog.Blob{Digest: d, Size: int64(len(b)), Content: b}
		if i%3 == 0 {
			blob.Content = nil
		}
		s.note("put", putBlob(ctx, s.c, fmt.Sprintf("repo/%d", i%2), blob, ""))
		s.note("put again", putBlob(ctx, s.c, fmt.Sprintf("repo/%d", i%2), blob, ""))
	}
	for i := range 20 {
		_, d := contentOf(2*i + 1)
		b, err := s.c.MountBlob(ctx, "repo/0", "repo/1", d)
		s.note("mount", err, b)
	}
	_, err := s.c.MountBlob(ctx, "repo/2", "repo/none", oci.SHA256(nil))
	s.note("mount nothing", err)
	empty := oci.SHA256([]byte{})
	s.note("empty", putBlob(ctx, s.c, "repo/0", catalog.Blob{Digest: empty, Content: []byte{}}, ""))
	b, err := s.c.Blob(ctx, "repo/0", empty)
	s.note("empty", err, b)
	p, err := repair.New(s.c.DB).Presence(ctx, []oci.Digest{empty})
	s.note("empty is inline", err, p)
	_, d := contentOf(3)
	b, err = s.c.LinkStored(ctx, "repo/3", d)
	s.note("link", err, b, b.Content == nil)
	_, err = s.c.LinkStored(ctx, "repo/3", oci.SHA256([]byte("x")))
	s.note("link nothing", err)
	replaced, err := s.c.PutManifest(ctx, "repo/0", manifestOf("a", 0, 30, "v1", "V1", "v-1", "latest", "_x"))
	s.note("manifest", err, replaced)
	m := manifestOf("b", 5, 35, "v1", "v2")
	m.ArtifactType, m.Subject = "text/a\x00b\xff", manifestOf("a", 0, 0).Digest
	m.Annotations = map[string]string{"k": "v\x00\u00e9", "'": "\\"}
	replaced, err = s.c.PutManifest(ctx, "repo/0", m)
	s.note("manifest", err, replaced)
	m = manifestOf("missing", 30, 300, "v9")
	_, err = s.c.PutManifest(ctx, "repo/1", m)
	var missing *catalog.MissingError
	s.note("missing", err, errors.As(err, &missing), missing)
	m = manifestOf("a", 0, 30)
	m.MediaType = "other"
	_, err = s.c.PutManifest(ctx, "repo/0", m)
	s.note("other type", err)
	m = manifestOf("immutable", 0, 1, "v1")
	m.Immutable = func(tag string) bool { return tag == "v1" }
	_, err = s.c.PutManifest(ctx, "repo/0", m)
	s.note("immutable", err)
	large := manifestOf("large", 0, 2, "large")
	large.ArtifactType = strings.Repeat("type/", 2000)
	large.Subject = manifestOf("a", 0, 0).Digest
	large.Annotations = map[string]string{"large": strings.Repeat("x", 70<<10)}
	_, err = s.c.PutManifest(ctx, "repo/0", large)
	s.note("large", err)
	index := catalog.NewManifest{Manifest: catalog.Manifest{Digest: oci.SHA256([]byte("index")), MediaType: "index", Content: []byte("index")},
		Manifests: []oci.Digest{manifestOf("a", 0, 0).Digest, manifestOf("b", 0, 0).Digest}, Tags: []string{"index"}}
	_, err = s.c.PutManifest(ctx, "repo/0", index)
	s.note("index", err)
}

func (s *script) readAll() {
	ctx := s.t.Context()
	for i := range 41 {
		_, d := contentOf(i)
		b, err := s.c.Blob(ctx, "repo/1", d)
		s.note("blob", err, b, b.Content == nil)
		b, err = s.c.StoredBlob(ctx, d)
		s.note("stored", err, b)
		known, err := s.c.Garbage.Known(ctx, d)
		s.note("known", err, known)
	}
	for _, tag := range []string{"v1", "V1", "none", "large"} {
		m, err := s.c.Tag(ctx, "repo/0", tag)
		s.note("tag", err, m.Digest, m.MediaType, m.ArtifactType, m.Annotations, string(m.Content))
		m, err = s.c.Manifest(ctx, "repo/0", m.Digest)
		s.note("manifest", err, m.Digest, m.Subject)
	}
	for _, last := range []string{"", "V1", "_x", "v1"} {
		tags, err := s.c.Tags(ctx, "repo/0", last, 3)
		s.note("tags", err, tags)
	}
	_, err := s.c.Tags(ctx, "nowhere", "", 3)
	s.note("tags of nothing", err)
	repos, err := s.c.Repositories(ctx, "repo/0", 10)
	s.note("repositories", err, repos)
	repos, err = s.c.Listed(ctx, "", 10)
	s.note("listed repositories", err, repos)
	for _, kind := range []string{"", "text/a", strings.Repeat("type/", 2000)} {
		list, more, err := s.c.Referrers(ctx, "repo/0", manifestOf("a", 0, 0).Digest, kind, "", 10)
		s.note("referrers", err, list, more)
	}
	n, err := s.c.Counts(ctx)
	s.note("counts", err, n)
	e, err := repair.New(s.c.DB).Extent(ctx)
	e.LastContent, e.LastManifest = 0, 0 // PostgreSQL skips IDs
	s.note("extent", err, e)
	contents, err := repair.New(s.c.DB).Contents(ctx, 0, 7)
	for i := range contents {
		contents[i].ID = 0
	}
	s.note("contents", err, contents)
	_, d := contentOf(4)
	uses, err := repair.New(s.c.DB).Uses(ctx, d, 10)
	s.note("uses", err, uses)
	_, other := contentOf(3)
	p, err := repair.New(s.c.DB).Presence(ctx, []oci.Digest{d, other, oci.SHA256([]byte("?"))})
	s.note("presence", err, p)
	s.note("ping", s.c.Ping(ctx))
	complaints, err := s.c.DB.Integrity(ctx, false, 10)
	s.note("integrity", err, complaints)
	now, err := s.c.DB.Now(ctx)
	s.note("now", err, now)
}

func (s *script) optional() {
	ctx := s.t.Context()
	m := manifestOf("optional", 0, 1, "opt")
	for i := range 300 {
		_, d := contentOf(i)
		m.Optional = append(m.Optional, oci.Descriptor{Digest: d, Size: int64(i)}, oci.Descriptor{Digest: d, Size: int64(i)})
	}
	_, err := s.c.PutManifest(ctx, "repo/0", m)
	s.note("optional", err)
	rows, err := repair.New(s.c.DB).ManifestRows(ctx, 0, 10)
	s.note("rows", err, len(rows))
	for _, row := range rows {
		refs, ok, err := repair.New(s.c.DB).RefsOf(ctx, row)
		s.note("refs", err, ok, len(refs))
	}
	done, err := repair.New(s.c.DB).DropRefs(ctx, rows[0], []oci.Digest{m.Optional[0].Digest})
	s.note("drop refs", err, done)
	done, err = repair.New(s.c.DB).AddRefs(ctx, rows[0], m.Optional[:4])
	s.note("add refs", err, done)
	done, err = repair.New(s.c.DB).LinkNamed(ctx, rows[0], m.Optional[0].Digest)
	s.note("link named", err, done)
	tags, err := s.c.DeleteManifest(ctx, "repo/0", m.Digest, nil)
	s.note("delete", err, tags)
	_, d := contentOf(6)
	s.note("delete blob", s.c.DeleteBlob(ctx, "repo/0", d))
	_, d = contentOf(36)
	s.note("delete blob", s.c.DeleteBlob(ctx, "repo/0", d))
	s.note("delete tag", s.c.DeleteTag(ctx, "repo/0", "V1", nil))
	s.note("delete tag", s.c.DeleteTag(ctx, "repo/0", "V1", nil))
	s.now = s.now.Add(2 * time.Hour)
	for _, dry := range []bool{true, false, false} {
		out, _, err := s.c.Garbage.Collect(ctx, catalog.CollectOptions{Before: s.now, DryRun: dry, Untagged: true})
		s.note("collect", err, out.Examined, out.Unlinked, len(out.Dropped), out.Objects, out.Cut, out.Freed)
	}
	left, err := s.c.Garbage.Deleting(ctx, 10)
	slices.SortFunc(left, func(a, b catalog.Blob) int { return strings.Compare(string(a.Digest), string(b.Digest)) })
	s.note("deleting", err, left)
	for _, b := range left {
		granted, err := s.c.Garbage.BeginDeleting(ctx, "me", time.Minute, b.Digest)
		s.note("begin", err, granted)
		deleting, err := s.c.Garbage.IsDeleting(ctx, b.Digest)
		s.note("is deleting", err, deleting)
		s.note("forget", s.c.Garbage.Forget(ctx, b.Digest))
	}
}

func (s *script) repairs() {
	ctx := s.t.Context()
	b, d := contentOf(7)
	shown, err := repair.New(s.c.DB).SetContent(ctx, d, b)
	s.note("set content", err, shown)
	shown, err = repair.New(s.c.DB).SetSize(ctx, d, 99)
	s.note("set size", err, shown)
	shown, err = repair.New(s.c.DB).MarkAbsent(ctx, d, false)
	s.note("absent", err, shown)
	shown, err = repair.New(s.c.DB).MarkAbsent(ctx, d, true)
	s.note("absent", err, shown)
	s.note("leak", s.c.DB.Write(ctx, func(t *engine.Tx) error {
		_, err := t.Exec(`INSERT INTO blobs (digest, size, state, content, created_at) VALUES ('sha256:leak', 1, 1, NULL, 0)`)
		return err
	}))
	leaks, err := repair.New(s.c.DB).Leaks(ctx, 0, 10)
	s.note("leaks", err, len(leaks))
	for _, l := range leaks {
		done, err := repair.New(s.c.DB).QueueLeak(ctx, l)
		s.note("queue leak", err, done)
	}
	s.note("postpone", s.c.Garbage.Postpone(ctx, []catalog.Postponed{{"repo/0", d, s.now.Add(time.Hour)}}))
	s.note("untagged", s.c.Garbage.QueueUntagged(ctx))
	adopted := manifestOf("adopted", 0, 1)
	n, err := s.c.Adopt(ctx, []catalog.AdoptRow{
		{Repo: "adopted", Blob: &catalog.Blob{Digest: d, Size: int64(len(b))}},
		{Repo: "adopted", Manifest: &adopted.Manifest, Named: []oci.Descriptor{{Digest: d, Size: 1}}, At: s.now},
		{Repo: "adopted", Tag: "t", Target: manifestOf("adopted", 0, 1).Digest, At: s.now},
		{Repo: "adopted", Tag: "u", Target: d, At: s.now}})
	s.note("adopt", err, n)
}

func (s *script) dangling() {
	ctx := s.t.Context()
	s.note("damage", s.c.DB.Write(ctx, func(t *engine.Tx) error {
		for _, q := range []string{
			`INSERT INTO links (repo_id, blob_id, created_at) VALUES (900, 901, 0), (1, 901, 0)`,
			`INSERT INTO refs (repo_id, blob_id, manifest_id) VALUES (1, 901, 902)`,
			`INSERT INTO tags (repo_id, name, manifest_id, updated_at, pulled_at) VALUES (1, 'lost', 903, 0, 0)`,
			`INSERT INTO manifests (id, repo_id, blob_id, media_type, artifact_type, created_at, pulled_at) VALUES (990, 904, 1, '', '', 0, 0)`,
			`INSERT INTO gc_queue (kind, repo_id, blob_id, due_at) VALUES (7, 1, 1, 0), (0, 905, 1, 0)`,
		} {
			if _, err := t.Exec(q); err != nil {
				return err
			}
		}
		return nil
	}))
	var last *repair.Dangling
	for {
		list, err := repair.New(s.c.DB).Dangling(ctx, last, 2)
		s.note("dangling", err, fmt.Sprint(list))
		if len(list) == 0 || err != nil {
			break
		}
		for _, d := range list {
			last = &d
			done, err := repair.New(s.c.DB).DeleteDangling(ctx, d)
			s.note("delete dangling", err, done)
		}
	}
}

func (s *script) gear() {
	ctx := s.t.Context()
	var layers []oci.Digest
	for i := range 3 {
		_, d := contentOf(8 + i)
		layers = append(layers, d)
	}
	s.note("queue", gearfacts.NewLayers(s.c.DB).Queue(ctx, layers...))
	s.note("requeue", gearfacts.NewLayers(s.c.DB).Requeue(ctx, layers[0]))
	s.note("defer", gearfacts.NewLayers(s.c.DB).DeferJob(ctx, layers[1], "no\x00luck", s.now))
	jobs, err := gearfacts.NewLayers(s.c.DB).Jobs(ctx, 10)
	s.note("jobs", err, jobs)
	failed, err := gearfacts.NewLayers(s.c.DB).Failed(ctx, "", 10)
	s.note("failed", err, failed)
	waiting, broken, err := gearfacts.NewLayers(s.c.DB).QueueCounts(ctx)
	s.note("queue", err, waiting, broken)
	s.note("end", gearfacts.NewLayers(s.c.DB).EndJob(ctx, layers[0]))
	names := []gearfacts.Name{}
	pack := gearfacts.NewPack{Digest: gearfacts.Name{9}, Size: 5000, Dense: true, NotBefore: s.now}
	for i := range 100 {
		names = append(names, gearfacts.Name{1, byte(i)})
		pack.Files = append(pack.Files, gearfacts.File{Name: gearfacts.Name{1, byte(i)}, Size: 10, Off: int64(i), Stored: 1, Encoding: 2})
		pack.Bytes++
	}
	s.note("intend", gearfacts.NewFiles(s.c.DB).Intend(ctx, "w", pack.Digest))
	layer := gearfacts.NewLayer{Layer: gearfacts.Layer{Digest: layers[0], Index: names[0], Files: 70, Bytes: 700, Embedded: true}, Names: names[:70]}
	s.note("record", gearfacts.NewFiles(s.c.DB).Record(ctx, gearfacts.Record{Writer: "w", Packs: []gearfacts.NewPack{pack}, Layer: &layer, Repo: "staged", Staged: names[90:], Until: s.now.Add(time.Minute)}))
	s.note("grant", gearfacts.NewLayers(s.c.DB).Grant(ctx, "repo/0", layers[0]))
	s.note("copy grant", gearfacts.NewLayers(s.c.DB).CopyGrant(ctx, "repo/0", "repo/1", layers[0]))
	granted, err := gearfacts.NewLayers(s.c.DB).Granted(ctx, "repo/0", layers[0])
	s.note("granted", err, granted)
	visible, err := gearfacts.NewFiles(s.c.DB).Visible(ctx, "repo/0", append(names, gearfacts.Name{7}))
	s.note("visible", err, visible)
	repos, err := gearfacts.NewLayers(s.c.DB).Repositories(ctx, layers[0])
	s.note("repositories", err, repos)
	files, err := gearfacts.NewFiles(s.c.DB).PackFiles(ctx, 1)
	s.note("files", err, len(files), files[99])
	packs, err := gearfacts.NewFiles(s.c.DB).Packs(ctx, 0, 10)
	s.note("packs", err, packs)
	s.note("lose", gearfacts.NewFiles(s.c.DB).Lose(ctx, names[1], pack.Digest))
	lost, err := gearfacts.NewLayers(s.c.DB).LayerLost(ctx, layers[0])
	s.note("lost", err, lost)
	s.note("queue lost", gearfacts.NewLayers(s.c.DB).QueueLost(ctx))
	of, err := gearfacts.NewLayers(s.c.DB).LayersOf(ctx, names[1], 4)
	s.note("layers of", err, of)
	known, err := gearfacts.NewFiles(s.c.DB).PackKnown(ctx, pack.Digest)
	s.note("known", err, known)
	s.note("profile", gearfacts.NewLayers(s.c.DB).ChangeProfile(ctx, layers[1], func(old []byte) ([]byte, error) { return append(old, 1), nil }))
	s.note("profile", gearfacts.NewLayers(s.c.DB).ChangeProfile(ctx, layers[1], func(old []byte) ([]byte, error) { return append(old, 2), nil }))
	profile, err := gearfacts.NewLayers(s.c.DB).Profile(ctx, layers[1])
	s.note("profile", err, profile)
	for i, kind := range []string{"a", "b", "a", "a"} {
		s.now = s.now.Add(time.Second)
		s.note("donor", gearfacts.NewLayers(s.c.DB).PutDonor(ctx, gearfacts.Donor{Repo: "repo/0", Manifest: oci.SHA256([]byte{byte(i)}), Data: []byte{byte(i)}}, kind, 2))
	}
	s.note("donor of none", gearfacts.NewLayers(s.c.DB).PutDonor(ctx, gearfacts.Donor{Repo: "none", Manifest: layers[0], Data: []byte{1}}, "a", 2))
	donors, err := gearfacts.NewLayers(s.c.DB).Donors(ctx, "repo/0")
	s.note("donors", err, donors)
	donors, err = gearfacts.NewLayers(s.c.DB).LastDonors(ctx, 2)
	s.note("last donors", err, donors)
	s.now = s.now.Add(time.Hour)
	for range 4 {
		n, err := gearfacts.NewFiles(s.c.DB).Collect(ctx, 8)
		s.note("collect", err, n)
	}
	counts, err := gearfacts.NewFiles(s.c.DB).Counts(ctx)
	s.note("counts", err, counts)
	writers, err := gearfacts.NewFiles(s.c.DB).Writers(ctx)
	s.note("writers", err, writers)
	gone, err := gearfacts.NewFiles(s.c.DB).Deleting(ctx, 5)
	s.note("gone", err, gone)
	job, err := gearfacts.NewLayers(s.c.DB).Job(ctx, layers[0])
	s.note("job", err, job)
}

func (s *script) retention() {
	ctx := s.t.Context()
	s.note("pulls", s.c.RecordPulls(ctx, []catalog.Pull{{"repo/0", "v1", 5}, {"repo/0", string(manifestOf("a", 0, 0).Digest), 7}, {"none", "x", 1}}))
	infos, err := s.c.Retention.Infos(ctx, "repo/0", nil)
	s.note("infos", err, infos)
	for n, i := range infos {
		t := catalog.TagInfo{Name: i.Name, Digest: i.Digest, Updated: time.UnixMilli(int64(3 * n)), LastPull: time.UnixMilli(6)}
		if n%2 == 1 {
			t.Digest = "sha256:another" // the tag has moved since
		}
		s.note("times", s.c.Retention.SetTagTimes(ctx, "repo/0", t))
	}
	infos, err = s.c.Retention.Infos(ctx, "repo/0", func(string, oci.Digest) bool { return true })
	s.note("set", err, infos)
	for _, i := range infos {
		if i.Name == "index" {
			removed, err := s.c.Retention.RetireTag(ctx, "repo/0", i.TagInfo, catalog.RetireOptions{})
			s.note("retire", err, removed)
		}
	}
	at, err := s.c.Retention.Newest(ctx)
	s.note("newest", err, at > 0)
	for _, m := range []time.Duration{1000, 1010, 1200, 1005} { // the third is too far ahead, the last is behind
		err := s.c.Settings.NoteClock(ctx, time.UnixMilli(int64(m)), 50*time.Millisecond)
		at, err2 := s.c.Settings.Clock(ctx)
		s.note("clock", errors.Join(err, err2), at)
	}
	s.note("trust", s.c.Settings.NoteClock(ctx, time.UnixMilli(7), 0))
	at, err = s.c.Settings.Clock(ctx)
	s.note("clock", err, at)
	s.parts()
	for i, day := range []int{1000, 1001, 1002, 1030, 1030, 1032} {
		now := time.UnixMilli(0).UTC().AddDate(0, 0, day)
		begun, err := s.c.Settings.Begin(ctx, fmt.Sprint("boot ", i/2), now, time.Hour, 7*24*time.Hour)
		s.note("begin", err, begun.Crashed, begun.Rebooted, begun.Idle, begun.HoldBack.Sub(now))
		if i > 0 {
			s.note("end", s.c.Settings.End(ctx, now.Add(time.Minute)))
		}
	}
	for i := range 3 {
		s.note("append", s.c.Queue.Append(ctx, "q", []byte{byte(i)}))
	}
	items, err := s.c.Queue.Next(ctx, "q", 2)
	s.note("next", err, len(items), items[0].Payload)
	s.note("delete", s.c.Queue.Delete(ctx, items[0].ID))
	n, err := s.c.Queue.Len(ctx, "q")
	s.note("len", err, n)
}

// parts deletes around an index of an index under an immutable tag.
func (s *script) parts() {
	ctx := s.t.Context()
	var below []oci.Digest
	for i := range 3 {
		m := catalog.NewManifest{Manifest: catalog.Manifest{Digest: oci.SHA256(fmt.Append(nil, "part", i)), MediaType: "x/y", Content: fmt.Append(nil, "part", i)}, Manifests: below}
		if i == 2 {
			m.Tags = []string{"fixed", "z"}
		}
		_, err := s.c.PutManifest(ctx, "parts", m)
		s.note("part", err)
		below = []oci.Digest{m.Digest}
	}
	here, err := s.c.ManifestsHere(ctx, "parts", []oci.Digest{below[0], "sha256:none"})
	s.note("here", err, here)
	for i := range 3 {
		tags, err := s.c.DeleteManifest(ctx, "parts", oci.SHA256(fmt.Append(nil, "part", i)), func(tag string) bool { return tag == "fixed" })
		var fixed *catalog.ImmutableError
		s.note("delete part", err, tags, errors.As(err, &fixed) && fixed.Part == (i < 2))
	}
	images, err := browse.New(s.c.DB).Images(ctx, browse.ImageQuery{Limit: 1, Only: func(repo string) bool { return repo == "parts" }})
	s.note("images", err, len(images), images[0].Repo, images[0].Tags)
	tags, err := s.c.DeleteManifest(ctx, "parts", below[0], nil)
	s.note("delete", err, tags)
	for range 2 {
		out, _, err := s.c.Garbage.Collect(ctx, catalog.CollectOptions{Before: s.now.Add(2 * time.Hour), Max: 1000})
		n := 0
		for _, u := range out.Unlinked {
			if u.Manifest && u.Repo == "parts" {
				n++
			}
		}
		s.note("collected parts", err, n)
	}
}

func (s *script) rest() {
	ctx := s.t.Context()
	s.note("save", s.c.Uploads.Save(ctx, catalog.Upload{ID: "u1", Repo: "r", Size: 5, State: "st", Hash: []byte{1}, Content: []byte{}},
		catalog.Upload{ID: "u2", Repo: "r", Content: []byte("x")}))
	u, err := s.c.Uploads.Get(ctx, "r", "u1")
	s.note("upload", err, u)
	stale, err := s.c.Uploads.Stale(ctx, s.now.Add(time.Hour), 5)
	s.note("stale", err, stale)
	states, err := s.c.Uploads.States(ctx)
	s.note("states", err, states)
	intents, err := s.c.Uploads.Intents(ctx)
	s.note("intents", err, intents)
	dropped, err := s.c.Uploads.DropStored(ctx)
	s.note("dropped", err, dropped)
	s.note("end", s.c.Uploads.Delete(ctx, "u2", "none"))
	path := filepath.Join(s.t.TempDir(), "backup.db")
	s.note("backup", s.c.DB.Backup(ctx, path))
	snap, err := snapshot.Open(ctx, path)
	if err != nil {
		s.t.Fatal(err, s.out[len(s.out)-1])
	}
	defer snap.Close()
	totals, err := snap.Totals(ctx)
	s.note("totals", err, totals)
	objects, err := snap.Objects(ctx, 0, 100)
	s.note("objects", err, len(objects))
	packs, err := snap.Packs(ctx, 0, 10)
	s.note("packs", err, len(packs))
	complaints, err := snap.Integrity(ctx, false, 10)
	s.note("integrity", err, complaints)
}
