package web

import (
	"context"
	"net/http"
	"strings"
	"unicode/utf8"

	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog/browse"
	"example.org/slipway/web/images"
)

// Browse is what the pages of repositories and images show and delete. Its reads do not
// count as pulls.
type Browse interface {
	images.Browse
	Repositories
}

// Repositories lists repositories and their tags, and deletes images.
type Repositories interface {
	// SearchRepositories lists at most n names after last that contain a text.
	SearchRepositories(ctx context.Context, text, last string, n int) ([]string, error)
	// RepositoryInfo describes a repository by at most the given number of its tags,
	// manifests and blobs. It returns catalog.ErrNoRepository if there is no such
	// repository.
	RepositoryInfo(ctx context.Context, repo string, most int) (browse.RepositoryInfo, error)
	// ListTags lists tags. It returns catalog.ErrNoRepository if there is no such
	// repository.
	ListTags(ctx context.Context, repo string, q browse.TagQuery) ([]browse.TagEntry, error)
	// Mirrored reports whether a repository is a copy of a repository elsewhere.
	Mirrored(repo string) bool
	// Undeletable returns the reason why no user can delete a manifest with these tags,
	// or one of the tags. It returns "" if they can be deleted.
	Undeletable(repo string, tags []string) (string, error)
	DeleteTag(ctx context.Context, repo, tag string) error
	DeleteManifest(ctx context.Context, repo string, d oci.Digest) error
}

const (
	// homePage is how many repositories are listed on a page. homeLook is how many names
	// a request reads to find these, because some are not shown to the user.
	homePage, homeLook = 50, 50_000
	homeStep           = 1000
	// homeCount bounds what is counted of each listed repository. repoCount bounds what
	// is counted of a repository on its own page.
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
	// Host is the host to push to.
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
			if images.Absent(err) {
				continue // deleted just now
			}
			return err
		}
		d.Rows = append(d.Rows, repoRow{name, b.Mirrored(name), info})
	}
	q.show(http.StatusOK, "home", "Repositories", d)
	return nil
}

// listed returns a page of names that the user may see, and where the next page begins.
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

// searched returns the text to search for: what the user typed, without characters that
// no name has.
func searched(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > oci.MaxNameLength || !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s[:min(len(s), oci.MaxNameLength)], "")
	}
	return strings.ReplaceAll(s, "\x00", "")
}
