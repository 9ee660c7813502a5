package web

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/browse"
)

// tagsPage is how many tags are listed at once.
const tagsPage = 50

// tagRow is a tag in the list.
type tagRow struct {
	browse.TagEntry
	Kind kind
	// Ref is the tag as the address of the image's page has it.
	Ref string
}

// repoData is what the page of a repository shows.
type repoData struct {
	Name, Query, Sort string
	Mirror            bool
	Info              browse.RepositoryInfo
	Tags              []tagRow
	// From is the number of the first tag; Before and After are those of the pages
	// beside it, -1 without one.
	From, Before, After int
	// MayDelete: who asks may, and nothing forbids it; Kept is what does.
	MayDelete bool
	Kept      string
	Host      string
}

// repo shows the tags of a repository.
func (q *request) repo() error {
	name := q.rest
	if ok, err := q.mayBrowse(name); !ok {
		return err
	}
	b := q.h.opts.Browse
	info, err := b.RepositoryInfo(q.ctx(), name, repoCount)
	if err != nil {
		return orNoImage(err)
	}
	d := &repoData{Name: name, Query: searched(q.r.FormValue("q")), Sort: q.r.FormValue("sort"), Info: info, Mirror: b.Mirrored(name),
		Before: -1, After: -1, Host: q.host()}
	if n, err := strconv.Atoi(q.r.FormValue("from")); err == nil && n > 0 && n < 1<<31 {
		d.From, d.Before = n, max(0, n-tagsPage)
	}
	if d.Sort != "name" {
		d.Sort = ""
	}
	list, err := b.ListTags(q.ctx(), name, browse.TagQuery{Text: d.Query, ByName: d.Sort != "", From: d.From, Limit: tagsPage + 1})
	if err != nil {
		return orNoImage(err)
	}
	if len(list) > tagsPage {
		list, d.After = list[:tagsPage], d.From+tagsPage
	}
	for _, t := range list {
		d.Tags = append(d.Tags, tagRow{t, kindOf(t.MediaType, t.ArtifactType, readManifest(t.Content)), tagRef(name, t.Name)})
	}
	if q.may(name, auth.Delete) {
		if d.Kept, err = b.Undeletable(name, nil); err != nil {
			return err
		}
		d.MayDelete = d.Kept == ""
	}
	q.show(http.StatusOK, "repo", name, d)
	return nil
}

// mayBrowse reports whether who asks may see a repository. Where not, the answer has been
// given or is the error: the one for a repository that is not there.
func (q *request) mayBrowse(repo string) (bool, error) {
	if q.h.opts.Browse == nil || !oci.ValidName(repo) {
		return false, noImage()
	}
	return q.seesRepository(repo)
}

// isAbsent tells of an error that something is not there.
func isAbsent(err error) bool {
	return errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrNoRepository) ||
		oci.HasCode(err, oci.CodeBlobUnknown) || oci.HasCode(err, oci.CodeManifestUnknown) || oci.HasCode(err, oci.CodeNameUnknown)
}

// orNoImage makes of an error that something is not there the answer for images.
func orNoImage(err error) error {
	if isAbsent(err) {
		return noImage()
	}
	return err
}

// tagRef is REPOSITORY:TAG, which has no character that an address must escape, or empty
// where one of them is malformed.
func tagRef(repo, tag string) string {
	if !oci.ValidName(repo) || !oci.ValidTag(tag) {
		return ""
	}
	return repo + ":" + tag
}

// host is what clients name the registry by: the configured one, or what the browser
// asked for if it looks like one.
func (q *request) host() string {
	if u, err := url.Parse(q.h.opts.Host); err == nil && u.Host != "" {
		return u.Host
	}
	host := q.r.Host
	for i := range len(host) {
		c := host[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(".-:[]", c) >= 0) {
			return "REGISTRY"
		}
	}
	if host == "" || host[0] == '-' || len(host) > oci.MaxNameLength {
		return "REGISTRY"
	}
	return host
}
