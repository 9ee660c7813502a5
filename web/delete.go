package web

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

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
	return q.deletion(at)
}

// deletion returns what the deletion of a tag or a manifest would do.
func (q *request) deletion(at images.Ref) (*deleteData, error) {
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
	if oci.ValidName(q.rest) {
		return q.confirmChosen()
	}
	d, err := q.toDelete()
	if d == nil || err != nil {
		return err
	}
	q.show(http.StatusOK, "delete", "Delete "+q.rest, d)
	return nil
}

// doDelete deletes a tag, or a manifest with its tags, or several of these.
func (q *request) doDelete() error {
	if oci.ValidName(q.rest) {
		return q.deleteChosen()
	}
	d, err := q.toDelete()
	if d == nil || err != nil {
		return err
	}
	if d.Kept != "" {
		q.show(http.StatusConflict, "delete", "Delete "+q.rest, d)
		return nil
	}
	if err := q.delete(d); err != nil {
		return orNoImage(err)
	}
	q.afterDeletion(d.Repo, []string{d.Ref})
	return nil
}

// delete deletes a tag or a manifest.
func (q *request) delete(d *deleteData) (err error) {
	if d.Tag != "" {
		err = q.h.opts.Browse.DeleteTag(q.ctx(), d.Repo, d.Tag)
	} else {
		err = q.h.opts.Browse.DeleteManifest(q.ctx(), d.Repo, d.Digest)
	}
	q.recordChange("delete", err, d.Repo, d.Ref)
	return err
}

// shortRef is how many characters of a digest name it in an offer to undo: as many as
// nobody finds twice.
const shortRef = len("sha256:") + 20

// afterDeletion sends the browser to the page of the repository, which offers to take the
// deletion of the given tags and digests back. Digests are cut, because proxies refuse
// answers with long headers.
func (q *request) afterDeletion(repo string, refs []string) {
	for i, ref := range refs {
		if oci.IsDigest(ref) {
			refs[i] = ref[:min(len(ref), shortRef)]
		}
	}
	to := "repo/" + repo + "?" + url.Values{"deleted": refs}.Encode()
	if _, err := q.h.opts.Browse.RepositoryInfo(q.ctx(), repo, 1); images.Absent(err) {
		to = ""
	}
	http.Redirect(q.w, q.r, q.h.opts.Prefix+Root+to, http.StatusSeeOther)
}

// maxChosen is how many tags and manifests can be deleted together: all on one page.
const maxChosen = tagsPage + untaggedPage

// chosenData is what the confirmation for several tags and manifests shows.
type chosenData struct {
	Repo string
	// Go are those that can be deleted, and Stay are the others.
	Go, Stay []*deleteData
	// Absent is how many are not here any more.
	Absent int
}

// chosen returns what a request is about to delete together, or nil if it has already
// answered the request.
func (q *request) chosen() (*chosenData, error) {
	d := &chosenData{Repo: q.rest}
	if ok, err := q.mayBrowse(d.Repo); !ok {
		return nil, err
	}
	if !q.may(d.Repo, auth.Delete) {
		return nil, q.refuse("You may not delete images of this repository.")
	}
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, maxForm)
	if err := q.r.ParseForm(); err != nil {
		return nil, &problem{status: http.StatusBadRequest, text: "The form could not be read.", err: err}
	}
	refs := slices.Compact(slices.Sorted(slices.Values(q.r.Form["ref"])))
	if len(refs) == 0 || len(refs) > maxChosen {
		return nil, &problem{status: http.StatusBadRequest, text: fmt.Sprintf("Choose 1 to %d tags or manifests at the page of the repository.", maxChosen)}
	}
	for _, ref := range refs {
		if !oci.ValidTag(ref) && !oci.ValidDigest(oci.Digest(ref)) {
			return nil, noImage()
		}
		row, err := q.deletion(images.Ref{Repo: d.Repo, Ref: ref})
		var p *problem
		switch {
		case errors.As(err, &p) && p.status == http.StatusNotFound:
			d.Absent++
		case err != nil:
			return nil, err
		case row.Kept != "":
			d.Stay = append(d.Stay, row)
		default:
			d.Go = append(d.Go, row)
		}
	}
	return d, nil
}

// confirmChosen shows which tags and manifests will be deleted together.
func (q *request) confirmChosen() error {
	d, err := q.chosen()
	if d == nil || err != nil {
		return err
	}
	q.show(http.StatusOK, "chosen", "Delete from "+d.Repo, d)
	return nil
}

// deleteChosen deletes several tags and manifests. It stops at the first that fails.
func (q *request) deleteChosen() error {
	d, err := q.chosen()
	if d == nil || err != nil {
		return err
	}
	if len(d.Go) == 0 {
		q.show(http.StatusConflict, "chosen", "Delete from "+d.Repo, d)
		return nil
	}
	var done []string
	for _, row := range d.Go {
		if err := q.delete(row); err != nil && !images.Absent(err) {
			return err
		}
		done = append(done, row.Ref)
	}
	q.afterDeletion(d.Repo, done)
	return nil
}
