package web

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
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
	// SearchRepositories lists at most n names that contain a text, in an order of package
	// browse.
	SearchRepositories(ctx context.Context, text, order string, n int) ([]string, error)
	// Find lists at most n images by tags, digests and annotations, in repositories for
	// which visible reports true.
	Find(ctx context.Context, text string, n int, visible func(repo string) bool) ([]browse.Found, error)
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
	// Unchangeable returns the reason why nothing can be changed now, or "".
	Unchangeable() string
	DeleteTag(ctx context.Context, repo, tag string) error
	DeleteManifest(ctx context.Context, repo string, d oci.Digest) error
	// DeleteRepository deletes all images of a repository, and returns how many
	// manifests it deleted.
	DeleteRepository(ctx context.Context, repo string) (int, error)
	// ListUntagged lists manifests that nothing names.
	ListUntagged(ctx context.Context, repo string, from, n int) ([]browse.Untagged, error)
	// TagHistory returns the changes of a tag, and Deleted returns the manifests that can
	// be restored, both the last one first. Restore makes a tag point at a manifest
	// again, or without a tag brings a deleted manifest back. RestoreAll brings all of
	// them back.
	TagHistory(ctx context.Context, repo, tag string, n int) ([]oci.TagChange, error)
	Deleted(ctx context.Context, repo string, n int) ([]oci.DeletedManifest, error)
	Restore(ctx context.Context, repo string, d oci.Digest, tag string) (oci.PutResult, error)
	RestoreAll(ctx context.Context, repo string) (int, error)
}

const (
	// homePage is how many repositories are listed on a page. homeLook is how many names
	// a request reads to find these, because some are not shown to the user.
	homePage, homeLook = 50, 50_000
	// homeCount bounds what is counted of each listed repository. repoCount bounds what
	// is counted of a repository on its own page.
	homeCount, repoCount = 2000, 50_000
	// maxFound is how many images are listed that a search finds.
	maxFound = 20
)

// repoRow is a repository in the list.
type repoRow struct {
	Name   string
	Mirror bool
	browse.RepositoryInfo
}

// foundRow is an image that a search found.
type foundRow struct {
	browse.Found
	// Ref is the address of the image's page.
	Ref string
}

// homeData is what the list shows.
type homeData struct {
	Query, Sort, Show string
	Rows              []repoRow
	// Total is how many repositories there are in the list, and More says that there may
	// be others.
	Total int
	More  bool
	// From and To are the numbers of the first and of the last repository on the page,
	// counted from 1. Before and After are the numbers of the first repositories on the
	// adjacent pages, counted from 0. They are -1 if there is no such page.
	From, To, Before, After int
	// Found are the images whose tags, digests or annotations the search found.
	Found []foundRow
	// Mirrors says that there are mirrors, so that the list can be filtered.
	Mirrors bool
	// Host is the host to push to.
	Host string
}

// home lists the repositories.
func (q *request) home() error {
	b := q.h.opts.Browse
	d := &homeData{Query: searched(q.r.FormValue("q")), Host: q.host(), Before: -1, After: -1, Mirrors: q.h.opts.System.Mirrors != nil}
	if b == nil {
		q.show(http.StatusOK, "home", "Repositories", d)
		return nil
	}
	if s := q.r.FormValue("sort"); s == browse.ByPushed || s == browse.ByPulled || s == browse.ByTags {
		d.Sort = s
	}
	if s := q.r.FormValue("show"); d.Mirrors && (s == "own" || s == "mirrored") {
		d.Show = s
	}
	names, err := q.listed(d)
	if err != nil {
		return err
	}
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
	if d.Query != "" && d.From <= 1 {
		if err := q.find(d); err != nil {
			return err
		}
	}
	q.show(http.StatusOK, "home", "Repositories", d)
	return nil
}

// listed returns a page of the names that the user may see, and counts all of them.
func (q *request) listed(d *homeData) ([]string, error) {
	b := q.h.opts.Browse
	names, err := b.SearchRepositories(q.ctx(), d.Query, d.Sort, homeLook+1)
	if err != nil {
		return nil, err
	}
	d.More = len(names) > homeLook
	names = slices.DeleteFunc(names[:min(len(names), homeLook)], func(name string) bool {
		return q.h.access != nil && !q.h.access.Listed(q.id, name) || d.Show != "" && b.Mirrored(name) != (d.Show == "mirrored")
	})
	d.Total = len(names)
	from, err := strconv.Atoi(q.r.FormValue("from"))
	if err != nil || from < 0 {
		from = 0
	}
	if from > 0 {
		d.Before = max(0, from-homePage)
	}
	if from+homePage < d.Total {
		d.After = from + homePage
	}
	names = names[min(from, d.Total):min(from+homePage, d.Total)]
	d.From, d.To = from+1, from+len(names)
	return names, nil
}

// find looks for images. It lists only images that the user may pull.
func (q *request) find(d *homeData) error {
	list, err := q.h.opts.Browse.Find(q.ctx(), d.Query, maxFound, func(repo string) bool { return q.may(repo, auth.Pull) })
	if err != nil {
		return err
	}
	for _, f := range list {
		row := foundRow{f, images.TagLink(f.Repo, f.Tag)}
		if f.Tag == "" {
			row.Ref = images.DigestLink(f.Repo, f.Digest)
		}
		d.Found = append(d.Found, row)
	}
	return nil
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
