package web

import (
	"net/http"
	"net/url"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/catalog/browse"
	"example.org/slipway/web/images"
)

// maxPointers is how many tags and indexes are listed.
const maxPointers = 100

// deleteData is what the confirmation page shows.
type deleteData struct {
	Repo, Ref, Tag string
	Digest         oci.Digest
	Use            browse.ManifestUse
	// Others are the other tags, which are deleted too, or stay.
	Others []string
	// Kept says why the image or tag cannot be deleted.
	Kept string
}

// toDelete returns what a request is about to delete, or nil if it has already answered
// the request.
func (q *request) toDelete() (*deleteData, error) {
	at, ok, err := q.imageAt()
	if !ok {
		return nil, err
	}
	if !q.may(at.Repo, auth.Delete) {
		return nil, q.refuse("You may not delete images of this repository.")
	}
	m, err := at.Read(q.ctx(), q.h.opts.Browse)
	if err != nil {
		return nil, orNoImage(err)
	}
	d := &deleteData{Repo: at.Repo, Ref: at.Ref, Digest: m.Digest}
	if d.Use, err = q.h.opts.Browse.ManifestUse(q.ctx(), at.Repo, m.Digest, maxPointers); err != nil {
		return nil, orNoImage(err)
	}
	tags := d.Use.Tags
	if !oci.IsDigest(at.Ref) {
		d.Tag, tags = at.Ref, []string{at.Ref}
	}
	for _, t := range d.Use.Tags {
		if t != d.Tag {
			d.Others = append(d.Others, t)
		}
	}
	d.Kept, err = q.h.opts.Browse.Undeletable(at.Repo, tags)
	return d, err
}

// confirmDelete shows what will be deleted.
func (q *request) confirmDelete() error {
	d, err := q.toDelete()
	if d == nil || err != nil {
		return err
	}
	q.show(http.StatusOK, "delete", "Delete "+q.rest, d)
	return nil
}

// doDelete deletes a tag, or a manifest with its tags.
func (q *request) doDelete() error {
	d, err := q.toDelete()
	if d == nil || err != nil {
		return err
	}
	if d.Kept != "" {
		q.show(http.StatusConflict, "delete", "Delete "+q.rest, d)
		return nil
	}
	if d.Tag != "" {
		err = q.h.opts.Browse.DeleteTag(q.ctx(), d.Repo, d.Tag)
	} else {
		err = q.h.opts.Browse.DeleteManifest(q.ctx(), d.Repo, d.Digest)
	}
	q.recordChange("delete", err, d.Repo, d.Ref)
	if err != nil {
		return orNoImage(err)
	}
	to := "repo/" + d.Repo + "?deleted=" + url.QueryEscape(d.Ref)
	if _, err := q.h.opts.Browse.RepositoryInfo(q.ctx(), d.Repo, 1); images.Absent(err) {
		to = ""
	}
	http.Redirect(q.w, q.r, q.h.opts.Prefix+Root+to, http.StatusSeeOther)
	return nil
}
