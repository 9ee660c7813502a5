package web

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/catalog/browse"
	"example.org/slipway/registry/quota"
	"example.org/slipway/web/images"
)

// tagsPage is how many tags are listed on a page.
const tagsPage = 50

// untaggedPage is how many manifests without a tag are listed on a page.
const untaggedPage = 50

// tagRow is a row for a tag.
type tagRow struct {
	browse.TagEntry
	Kind images.Kind
	// Ref is the tag as it appears in the address of the image's page.
	Ref string
	// Badges say what is attached to the image.
	Badges []string
	// Place is the number of images before it in the list.
	Place int
}

// untaggedRow is a row for a manifest that nothing names.
type untaggedRow struct {
	browse.Untagged
	Kind images.Kind
	Ref  string
}

// repoData is what the page of a repository shows.
type repoData struct {
	Name, Query, Sort string
	Mirror            bool
	Info              browse.RepositoryInfo
	Tags              []tagRow
	Images            int // of Tags
	// All says that the tags of signing tools are listed, too.
	All bool
	// Untagged are the manifests that nothing names, and MoreUntagged says that there are
	// others.
	Untagged     []untaggedRow
	MoreUntagged bool
	// Deleted are the manifests that can be restored, if the user may do so. Undo is how
	// the deletions that led to this page can be taken back, and Emptied says that all
	// images were deleted.
	Deleted []oci.DeletedManifest
	Undo    []undo
	Emptied bool
	// From is the number of the first tag. Before and After are the numbers of the first
	// tags of the adjacent pages, or -1 if there is no such page.
	From, Before, After int
	// MayDelete reports that the user may delete tags and that nothing forbids it. Kept
	// says what forbids it.
	MayDelete bool
	Kept      string
	// Quotas are the quotas of the repository, if the user may push to it.
	Quotas []quota.Status
	Host   string
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
	d.All = d.Query != "" || q.r.FormValue("all") != ""
	list, err := b.ListTags(q.ctx(), name, browse.TagQuery{Text: d.Query, Images: !d.All, ByName: d.Sort != "", From: d.From, Limit: tagsPage + 1})
	if err != nil {
		return orNoImage(err)
	}
	if len(list) > tagsPage {
		list, d.After = list[:tagsPage], d.From+tagsPage
	}
	for _, t := range list {
		d.Tags = append(d.Tags, tagRow{t, images.KindOf(t.MediaType, t.ArtifactType, t.Content), images.TagLink(name, t.Name),
			q.h.images.Verified(q.ctx(), name, t.Digest, images.Badges(t.Attached, t.Hung, t.Content)), d.Images})
		if d.Tags[len(d.Tags)-1].Kind.Image {
			d.Images++
		}
	}
	if q.may(name, auth.Delete) {
		if d.Kept, err = b.Undeletable(name, nil); err != nil {
			return err
		}
		d.MayDelete = d.Kept == ""
	}
	if q.may(name, auth.Push) && !d.Mirror {
		d.Quotas = q.h.quotas(name)
	}
	if err := q.leftovers(d); err != nil {
		return err
	}
	q.show(http.StatusOK, "repo", name, d)
	return nil
}

// leftovers lists the manifests that nothing names, and those that were deleted.
func (q *request) leftovers(d *repoData) error {
	b := q.h.opts.Browse
	list, err := b.ListUntagged(q.ctx(), d.Name, 0, untaggedPage+1)
	if err != nil {
		return orNoImage(err)
	}
	if d.MoreUntagged = len(list) > untaggedPage; d.MoreUntagged {
		list = list[:untaggedPage]
	}
	for _, u := range list {
		d.Untagged = append(d.Untagged, untaggedRow{u, images.KindOf(u.MediaType, u.ArtifactType, nil), images.DigestLink(d.Name, u.Digest)})
	}
	if !q.mayRestore(d.Name) {
		return nil
	}
	if d.Deleted, err = b.Deleted(q.ctx(), d.Name, maxDeleted); err != nil {
		return err
	}
	d.Emptied = q.r.FormValue("deleted") == "*" && len(d.Deleted) > 0
	refs := q.r.Form["deleted"]
	for _, ref := range refs[:min(len(refs), maxChosen)] {
		u, err := q.undoable(d.Name, ref, d.Deleted)
		if err != nil {
			return err
		}
		if u != nil {
			d.Undo = append(d.Undo, *u)
		}
	}
	return nil
}

// mayBrowse reports whether the user may see a repository. If not, it has answered the
// request, or returns the error for a repository that does not exist.
func (q *request) mayBrowse(repo string) (bool, error) {
	switch {
	case q.h.opts.Browse == nil || !oci.ValidName(repo):
		return false, noImage()
	case q.may(repo, auth.Pull):
		return true, nil
	case q.h.logins != nil && q.id.Anonymous():
		return false, q.refuse("Log in to see this repository.")
	}
	return false, noImage()
}

// noImage returns the error for images that do not exist or that the user may not see.
func noImage() error {
	return notFound("There is no such image here, or you may not see it.")
}

// orNoImage replaces an error that says that something does not exist by the error to
// answer with.
func orNoImage(err error) error {
	switch {
	case errors.Is(err, images.ErrNoDirectory):
		return notFound("The image has no directory of that name.")
	case images.Absent(err):
		return noImage()
	}
	return err
}

// host returns the host by which clients name the registry. This is the configured host.
// Otherwise it is the host in the browser's request, if that looks like a host.
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
