// Package adopt takes over, in place, what a Distribution registry stored.
package adopt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"example.org/slipway/registry/manifest"

	"golang.org/x/sync/errgroup"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/storage"
)

// Options are the options of [Run]. The zero value works.
type Options struct {
	// Verify also reads every blob and checks its digest. Manifests, empty blobs, and
	// blobs whose size a manifest contradicts are always checked.
	Verify bool
	// Progress, if not nil, is called about ten times a second and at the end.
	// It delays the adoption.
	Progress func(Report)
	// Logger is the logger; default slog.Default.
	Logger *slog.Logger
}

// These are the reasons why something in a storage is not adopted unchanged.
const (
	MissingBlob = "blob-missing"     // a link to a blob that is not in the storage
	Lost        = "manifest-missing" // a manifest that is not in the storage
	Corrupt     = "content-corrupt"  // a content that does not have its digest
	Incomplete  = "image-incomplete" // a manifest that names what its repository lacks; it is adopted
	Schema1     = "schema1"          // a manifest of Docker's old schema
	Malformed   = "malformed"        // a manifest, link or name that cannot be read
	Dangling    = "tag-dangling"     // a tag whose manifest is not adopted
)

// Note describes something that was not adopted unchanged.
type Note struct {
	// Reason is one of the constants.
	Reason string
	Repo   string
	// Ref is a digest or tag.
	Ref    string
	Detail string
}

// Report says what was found and what was adopted.
type Report struct {
	Repositories int
	// Blobs, Manifests and Tags count what was found, in each repository separately.
	Blobs, Manifests, Tags int
	// NewBlobs, NewManifests and NewTags count those that were not in the catalogue before.
	NewBlobs, NewManifests, NewTags int
	// Bytes is the size of the blobs that were not in the catalogue before.
	Bytes int64
	// Counts counts the notes by reason.
	Counts map[string]int
	// Notes holds at most 1000 notes.
	Notes []Note
	Took  time.Duration
}

// Lacks counts, by reason, the notes that may mean that an image is missing. A link to a
// missing blob does not count if no image needs the blob, because Distribution's garbage
// collector leaves such links. A manifest of the old schema counts only if a tag names
// it.
func (rep *Report) Lacks() map[string]int {
	lacks := map[string]int{}
	for _, reason := range []string{Corrupt, Lost, Incomplete, Malformed, Dangling} {
		if n := rep.Counts[reason]; n > 0 {
			lacks[reason] = n
		}
	}
	return lacks
}

const (
	// rowsAtOnce is the number of rows that share a transaction.
	rowsAtOnce = 500
	// requestsAtOnce is the number of concurrent requests to the store.
	requestsAtOnce = 8
	// maxNotes is the maximum number of notes in a report.
	maxNotes = 1000
	// progressEvery is how often progress is shown.
	progressEvery = 100 * time.Millisecond
	// manifestsAtOnce is the number of manifests in RAM at the same time. Each has at most 4 MiB,
	// and usually a few KB.
	manifestsAtOnce = 32
)

// Run records in the catalogue what a Distribution registry wrote into the store:
// repositories, tags, manifests and blobs. It moves no blob, and changes and deletes
// nothing. Distribution can therefore continue to use the storage, but not while this
// registry deletes from it.
//
// Run can be repeated, and then adds what is new. Content comes back if it was deleted in
// this registry but Distribution still has links to it. Layers that no manifest names are
// adopted too. They are collected like the layers of an unfinished push. No registry may
// serve from the catalogue while Run runs.
func Run(ctx context.Context, cat *catalog.Catalog, store objstore.Store, o Options) (Report, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	a := &adopter{cat: cat, store: store, o: o}
	a.rep.Counts, a.corrupt = map[string]int{}, map[oci.Digest]bool{}
	began := time.Now()
	err := a.run(ctx)
	a.rep.Took = time.Since(began)
	if o.Progress != nil {
		o.Progress(a.report())
	}
	if err != nil {
		err = fmt.Errorf("adopt the storage: %w", err)
	}
	return a.rep, err
}

// adopter is one run. It works on one repository at a time and keeps that repository's digests and
// tags in RAM.
type adopter struct {
	cat   *catalog.Catalog
	store objstore.Store
	o     Options
	rep   Report
	shown time.Time

	repo      string
	layers    []oci.Digest // links still to be looked up
	blobs     map[oci.Digest]*foundBlob
	present   map[oci.Digest]bool // blobs and manifests
	manifests map[oci.Digest]bool
	revisions []linkFile
	tags      []linkFile
	// history holds the tags for which the storage has a history.
	history map[string]bool

	// corrupt holds the blobs of all repositories whose bytes were found to be wrong. If
	// one repository shows that a blob has a wrong size, that counts for the others too.
	corrupt map[oci.Digest]bool
}

// linkFile is one of Distribution's link files.
type linkFile struct {
	// ref is a digest, or the name of a tag.
	ref string
	key string
	at  time.Time
}

// These are the kinds of links.
const (
	linkNone = iota
	linkLayer
	linkRevision
	linkTag
	linkHistory
)

// parseLink parses the key of a link file. The keys, after docker/registry/v2/repositories/, are:
//
//	<name>/_layers/<algorithm>/<hex>/link
//	<name>/_manifests/revisions/<algorithm>/<hex>/link
//	<name>/_manifests/tags/<tag>/current/link
//	<name>/_manifests/tags/<tag>/index/<algorithm>/<hex>/link
//
// Other files, such as uploads, are skipped.
func parseLink(key string) (kind int, repo, ref string) {
	rest, ok := strings.CutPrefix(key, storage.RepositoryPrefix)
	i := strings.Index(rest, "/_")
	if !ok || i < 0 {
		return linkNone, "", ""
	}
	repo = rest[:i]
	p := strings.Split(rest[i+1:], "/")
	switch {
	case len(p) == 4 && p[0] == "_layers" && p[3] == "link":
		return linkLayer, repo, p[1] + ":" + p[2]
	case len(p) == 5 && p[0] == "_manifests" && p[1] == "revisions" && p[4] == "link":
		return linkRevision, repo, p[2] + ":" + p[3]
	case len(p) == 5 && p[0] == "_manifests" && p[1] == "tags" && p[3] == "current" && p[4] == "link":
		return linkTag, repo, p[2]
	case len(p) == 7 && p[0] == "_manifests" && p[1] == "tags" && p[3] == "index" && p[6] == "link":
		return linkHistory, repo, p[2]
	}
	return linkNone, repo, ""
}

func (a *adopter) run(ctx context.Context) error {
	for info, err := range a.store.List(ctx, storage.RepositoryPrefix, "") {
		if err != nil {
			return err
		}
		kind, repo, ref := parseLink(info.Key)
		if kind == linkNone {
			continue
		}
		if repo != a.repo { // all links of a repository follow one another
			if err := a.finishRepo(ctx); err != nil {
				return err
			}
			a.repo, a.present, a.manifests = repo, map[oci.Digest]bool{}, map[oci.Digest]bool{}
			a.blobs, a.history = map[oci.Digest]*foundBlob{}, map[string]bool{}
			if oci.ValidName(repo) {
				a.rep.Repositories++
			} else {
				a.note(Malformed, "", "its name is not one of a repository")
			}
		}
		if !oci.ValidName(repo) {
			continue
		}
		if err := a.take(ctx, kind, linkFile{ref, info.Key, info.ModTime}); err != nil {
			return err
		}
	}
	if err := a.finishRepo(ctx); err != nil || a.repo != "" {
		return err
	}
	return a.nothing(ctx)
}

// nothing, which runs if no repository was found, refuses a storage that has blobs. The
// links of the blobs are lost or elsewhere, and a successful adoption would hide that.
func (a *adopter) nothing(ctx context.Context) error {
	for info, err := range a.store.List(ctx, storage.BlobPrefix, "") {
		if err != nil {
			return err
		}
		return fmt.Errorf("it holds blobs, such as %s, and no repository: bring back %s first", info.Key, storage.RepositoryPrefix)
	}
	return nil
}

// take adds a link to the list of its kind.
func (a *adopter) take(ctx context.Context, kind int, l linkFile) error {
	valid := oci.ValidTag(l.ref)
	if kind == linkHistory {
		a.history[l.ref] = a.history[l.ref] || valid // an invalid tag is noted when its current/link is found
		return nil
	}
	if kind != linkTag {
		valid = oci.ValidDigest(oci.Digest(l.ref))
	}
	if !valid {
		a.note(Malformed, l.ref, "link "+l.key+" is for no valid digest or tag")
		return nil
	}
	switch kind {
	case linkRevision:
		a.revisions = append(a.revisions, l)
	case linkTag:
		a.tags = append(a.tags, l)
	case linkLayer:
		if a.layers = append(a.layers, oci.Digest(l.ref)); len(a.layers) == rowsAtOnce {
			return a.findLayers(ctx)
		}
	}
	return nil
}

func (a *adopter) finishRepo(ctx context.Context) error {
	err := a.findLayers(ctx)
	if err == nil {
		err = a.adoptRevisions(ctx)
	}
	if err == nil {
		err = a.adoptLayers(ctx)
	}
	if err == nil {
		err = a.adoptTags(ctx)
	}
	a.layers, a.revisions, a.tags = nil, nil, nil
	if err != nil {
		return fmt.Errorf("repository %s: %w", a.repo, err)
	}
	return nil
}

func (a *adopter) note(reason, ref, detail string) {
	a.o.Logger.Warn("not adopted as it is", "reason", reason, "repo", a.repo, "ref", ref, "detail", detail)
	a.rep.Counts[reason]++
	if len(a.rep.Notes) < maxNotes {
		a.rep.Notes = append(a.rep.Notes, Note{reason, a.repo, ref, detail})
	}
}

// record writes rows to the catalogue.
func (a *adopter) record(ctx context.Context, rows []catalog.AdoptRow) error {
	if len(rows) > 0 {
		n, err := a.cat.Adopt(ctx, rows)
		if err != nil {
			return err
		}
		a.rep.NewBlobs += n.Blobs
		a.rep.NewManifests += n.Manifests
		a.rep.NewTags += n.Tags
	}
	if now := time.Now(); a.o.Progress != nil && now.Sub(a.shown) >= progressEvery {
		a.shown = now
		a.o.Progress(a.report())
	}
	return nil
}

// report returns a copy of the report as it stands.
func (a *adopter) report() Report {
	rep := a.rep
	rep.Counts = maps.Clone(a.rep.Counts)
	return rep
}

// inParallel calls fn for 0 to n-1, several at a time.
func inParallel(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(requestsAtOnce)
	for i := range n {
		g.Go(func() error { return fn(ctx, i) })
	}
	return g.Wait()
}

// adoptRevisions reads and records the repository's manifests.
func (a *adopter) adoptRevisions(ctx context.Context) error {
	for _, l := range a.revisions { // an index may come before the manifests that it names
		a.present[oci.Digest(l.ref)] = true
	}
	for left := a.revisions; len(left) > 0; {
		batch := left[:min(len(left), manifestsAtOnce)]
		left = left[len(batch):]
		found := make([]foundManifest, len(batch))
		err := inParallel(ctx, len(batch), func(ctx context.Context, i int) error {
			return a.findManifest(ctx, oci.Digest(batch[i].ref), &found[i])
		})
		if err != nil {
			return err
		}
		if err := a.checkSizes(ctx, found); err != nil {
			return err
		}
		var rows []catalog.AdoptRow
		for i, l := range batch {
			if f := &found[i]; f.reason != "" {
				a.note(f.reason, l.ref, f.detail)
				delete(a.present, oci.Digest(l.ref))
			} else {
				a.manifests[oci.Digest(l.ref)] = true
				rows = append(rows, a.manifestRow(l, f))
			}
		}
		if err := a.record(ctx, rows); err != nil {
			return err
		}
	}
	return nil
}

// foundManifest is a manifest in the storage, or the reason why it is not adopted.
type foundManifest struct {
	content        []byte
	doc            manifest.Document
	reason, detail string
}

// manifestRow returns the row for a manifest. It notes what the manifest names and the repository
// lacks.
func (a *adopter) manifestRow(l linkFile, f *foundManifest) catalog.AdoptRow {
	a.rep.Manifests++
	m := &catalog.Manifest{Digest: oci.Digest(l.ref), MediaType: f.doc.MediaType, ArtifactType: f.doc.ReferrerType(),
		Annotations: f.doc.Annotations, Content: f.content}
	if f.doc.Subject != nil {
		m.Subject = f.doc.Subject.Digest
	}
	named := f.doc.Names()
	for _, d := range manifest.Unique(named.Blobs, named.Manifests) {
		if !a.present[d.Digest] {
			a.note(Incomplete, l.ref, fmt.Sprintf("it names %s, which the repository does not have", d.Digest))
		}
	}
	return catalog.AdoptRow{Repo: a.repo, Manifest: m, Named: named.All(), At: l.at}
}

func (a *adopter) findManifest(ctx context.Context, d oci.Digest, f *foundManifest) error {
	b, err := a.readSmall(ctx, storage.BlobKey(d), oci.MaxManifestSize)
	switch {
	case errors.Is(err, objstore.ErrNotExist):
		f.reason, f.detail = Lost, "the manifest is not in the storage"
	case errors.Is(err, errTooLarge):
		f.reason, f.detail = Malformed, err.Error()
	case err != nil:
		return err
	case d.Algorithm().FromBytes(b) != d:
		f.reason, f.detail = Corrupt, fmt.Sprintf("the %d bytes of the manifest do not have its digest", len(b))
	case isSchema1(b):
		f.reason, f.detail = Schema1, "it is of Docker's manifest schema 1, which no current client pulls"
	default:
		f.content = b
		if f.doc, err = manifest.Parse(b, ""); err != nil {
			f.reason, f.detail = Malformed, err.Error()
		}
	}
	return nil
}

func isSchema1(b []byte) bool {
	var doc struct {
		SchemaVersion int `json:"schemaVersion"`
	}
	return json.Unmarshal(b, &doc) == nil && doc.SchemaVersion == 1
}

// adoptTags reads and records the repository's tags.
func (a *adopter) adoptTags(ctx context.Context) error {
	for _, l := range a.tags {
		delete(a.history, l.ref)
	}
	for _, tag := range slices.Sorted(maps.Keys(a.history)) {
		a.note(Dangling, tag, "the storage has a history of the tag, and no link to its manifest")
	}
	for left := a.tags; len(left) > 0; {
		batch := left[:min(len(left), rowsAtOnce)]
		left = left[len(batch):]
		targets := make([]string, len(batch))
		err := inParallel(ctx, len(batch), func(ctx context.Context, i int) error {
			b, err := a.readSmall(ctx, batch[i].key, 256)
			if errors.Is(err, objstore.ErrNotExist) || errors.Is(err, errTooLarge) {
				err = nil // the result is noted as a tag without a valid digest
			}
			targets[i] = strings.TrimSpace(string(b))
			return err
		})
		if err != nil {
			return err
		}
		var rows []catalog.AdoptRow
		for i, l := range batch {
			d := oci.Digest(targets[i])
			switch {
			case !oci.ValidDigest(d):
				a.note(Malformed, l.ref, fmt.Sprintf("the tag's link holds %.80q, which is not a digest", targets[i]))
			case !a.manifests[d]:
				a.note(Dangling, l.ref, fmt.Sprintf("manifest %s of the tag is not adopted", d))
			default:
				a.rep.Tags++
				rows = append(rows, catalog.AdoptRow{Repo: a.repo, Tag: l.ref, Target: d, At: l.at})
			}
		}
		if err := a.record(ctx, rows); err != nil {
			return err
		}
	}
	return nil
}

// errTooLarge is returned for an object that is larger than allowed.
var errTooLarge = errors.New("the object is too large")

func (a *adopter) readSmall(ctx context.Context, key string, most int64) ([]byte, error) {
	obj, err := a.store.Get(ctx, key, 0, -1)
	if err != nil {
		return nil, err
	}
	defer obj.Close()
	if n := obj.Info().Size; n > most {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are expected", errTooLarge, n, most)
	}
	return io.ReadAll(obj)
}
