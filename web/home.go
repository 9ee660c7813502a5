package web

import (
	"context"
	"net/http"
	"strings"
	"unicode/utf8"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/browse"
)

// Browse is what the pages of repositories show, and delete. To ask is not to pull.
type Browse interface {
	// SearchRepositories lists at most n names behind last that hold a text.
	SearchRepositories(ctx context.Context, text, last string, n int) ([]string, error)
	// RepositoryInfo describes a repository by at most so many of its tags, manifests
	// and blobs. Errors: catalog.ErrNoRepository.
	RepositoryInfo(ctx context.Context, repo string, most int) (browse.RepositoryInfo, error)
	// ListTags lists tags. Errors: catalog.ErrNoRepository.
	ListTags(ctx context.Context, repo string, q browse.TagQuery) ([]browse.TagEntry, error)
	// Tag and Manifest return a manifest. Errors: catalog.ErrNotFound.
	Tag(ctx context.Context, repo, tag string) (catalog.Manifest, error)
	Manifest(ctx context.Context, repo string, d oci.Digest) (catalog.Manifest, error)
	// ManifestUse tells more of one, with at most n tags and indexes.
	ManifestUse(ctx context.Context, repo string, d oci.Digest, n int) (browse.ManifestUse, error)
	// Content returns a blob of at most so many bytes. Errors: catalog.ErrNotFound.
	Content(ctx context.Context, repo string, d oci.Digest, most int64) ([]byte, error)
	// Attached lists at most n of the manifests whose subject is d.
	Attached(ctx context.Context, repo string, d oci.Digest, n int) (list []oci.Descriptor, more bool, err error)
	// Layer tells what became of a layer of a repository.
	Layer(ctx context.Context, repo string, d oci.Digest) (LayerState, error)
	// Mirrored reports whether a repository is a copy of one elsewhere.
	Mirrored(repo string) bool
	// Undeletable is why a manifest with these tags, or one of the tags, cannot be
	// deleted, whoever asks; empty if it can.
	Undeletable(repo string, tags []string) (string, error)
	DeleteTag(ctx context.Context, repo, tag string) error
	DeleteManifest(ctx context.Context, repo string, d oci.Digest) error
}

const (
	// homePage is how many repositories are listed at once, and homeLook how many names
	// a request looks at to find them among those that are not shown to who asks.
	homePage, homeLook = 50, 50_000
	homeStep           = 1000
	// homeCount is how much of each is counted, repoCount how much of one at its page.
	homeCount, repoCount = 2000, 50_000
)

// repoRow is a repository in the list.
type repoRow struct {
	Name   string
	Mirror bool
	browse.RepositoryInfo
}

// homeData is what the list shows.
type homeData struct {
	Query, Last, Next string
	Rows              []repoRow
	// Host is what to push to.
	Host string
}

// home lists the repositories.
func (q *request) home() error {
	b := q.h.opts.Browse
	d := &homeData{Query: searched(q.r.FormValue("q")), Last: q.r.FormValue("last"), Host: q.host()}
	if !oci.ValidName(d.Last) {
		d.Last = ""
	}
	if b == nil {
		q.show(http.StatusOK, "home", "Repositories", d)
		return nil
	}
	names, next, err := q.listed(d.Query, d.Last)
	if err != nil {
		return err
	}
	d.Next = next
	for _, name := range names {
		info, err := b.RepositoryInfo(q.ctx(), name, homeCount)
		if err != nil {
			if isAbsent(err) {
				continue // deleted just now
			}
			return err
		}
		d.Rows = append(d.Rows, repoRow{name, b.Mirrored(name), info})
	}
	q.show(http.StatusOK, "home", "Repositories", d)
	return nil
}

// listed returns a page of names that who asks may see, and where the next one goes on.
func (q *request) listed(text, last string) (names []string, next string, err error) {
	for looked := 0; looked < homeLook; {
		step := homeStep
		if q.h.access == nil {
			step = homePage + 1
		}
		list, err := q.h.opts.Browse.SearchRepositories(q.ctx(), text, last, step)
		if err != nil {
			return nil, "", err
		}
		for _, name := range list {
			if q.h.access != nil && !q.h.access.Listed(q.id, name) {
				continue
			}
			if len(names) == homePage {
				return names, names[homePage-1], nil
			}
			names = append(names, name)
		}
		if looked += len(list); len(list) < step {
			return names, "", nil
		}
		last = list[len(list)-1]
	}
	return names, last, nil
}

// searched is a text to search for: what people typed, without what no name has.
func searched(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > oci.MaxNameLength || !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s[:min(len(s), oci.MaxNameLength)], "")
	}
	return strings.ReplaceAll(s, "\x00", "")
}
