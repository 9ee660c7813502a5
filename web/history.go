package web

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
	"example.org/slipway/web/images"
)

const (
	// maxChanges is how many changes of a tag are shown.
	maxChanges = 100
	// maxDeleted is how many deleted manifests are shown.
	maxDeleted = 100
)

// change is a row of a tag's history.
type change struct {
	oci.TagChange
	// Ref is the address of the manifest's page if it is here. Current says that the tag
	// points at it now.
	Ref     string
	Current bool
}

// historyData is what the history of a tag shows.
type historyData struct {
	Repo, Tag string
	Changes   []change
	// MayMove reports that the user may point the tag elsewhere.
	MayMove bool
	// Host is the host of the registry.
	Host string
}

// history shows what a tag pointed at.
func (q *request) history() error {
	at, ok, err := q.imageAt()
	if !ok {
		return err
	}
	if oci.IsDigest(at.Ref) {
		return noImage()
	}
	list, err := q.h.opts.Browse.TagHistory(q.ctx(), at.Repo, at.Ref, maxChanges)
	if err != nil {
		return orNoImage(err)
	}
	d := &historyData{Repo: at.Repo, Tag: at.Ref, MayMove: q.mayRestore(at.Repo), Host: q.host()}
	for i, c := range list {
		if q.h.access != nil && q.id.Anonymous() {
			c.By = "" // the names of users are not for everybody
		}
		row := change{TagChange: c, Current: i == 0 && c.Digest != ""}
		if c.State == oci.StateHere {
			row.Ref = images.DigestLink(at.Repo, c.Digest)
		}
		d.Changes = append(d.Changes, row)
	}
	q.show(http.StatusOK, "history", "History of "+q.rest, d)
	return nil
}

// mayRestore reports whether the user may take changes of a repository back.
func (q *request) mayRestore(repo string) bool {
	return q.may(repo, auth.Push) && !q.h.opts.Browse.Mirrored(repo) && q.h.opts.Browse.Unchangeable() == ""
}

// restore makes tags point at earlier manifests again, or brings deleted manifests back,
// or all of them.
func (q *request) restore() error {
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, maxForm)
	if err := q.r.ParseForm(); err != nil {
		return &problem{status: http.StatusBadRequest, text: "The form could not be read.", err: err}
	}
	repo := q.rest
	if ok, err := q.mayBrowse(repo); !ok {
		return err
	}
	if !q.mayRestore(repo) {
		return q.refuse("You may not restore images of this repository.")
	}
	items, err := restored(q.r.PostForm)
	if err != nil {
		return err
	}
	if len(items) > 0 {
		err = q.restoreItems(repo, items)
	} else {
		_, err = q.h.opts.Browse.RestoreAll(q.ctx(), repo)
		q.recordChange("restore", err, repo, "")
	}
	if err != nil {
		return orNoImage(err)
	}
	to := "repo/" + repo
	if len(items) == 1 && items[0].Tag != "" && q.r.PostForm.Get("from") == "history" {
		to = "history/" + repo + ":" + items[0].Tag
	}
	http.Redirect(q.w, q.r, q.h.opts.Prefix+Root+to, http.StatusSeeOther)
	return nil
}

// restored returns what a form restores: each item is TAG@DIGEST, or @DIGEST for a
// manifest with the tags that it had. There is none if everything is restored.
func restored(form url.Values) (items []undo, err error) {
	texts := form["item"]
	if digest, tag := form.Get("digest"), form.Get("tag"); digest != "" || tag != "" {
		texts = append(texts, tag+"@"+digest)
	}
	for _, text := range texts {
		tag, digest, _ := strings.Cut(text, "@")
		if !oci.ValidDigest(oci.Digest(digest)) || tag != "" && !oci.ValidTag(tag) {
			return nil, noImage()
		}
		items = append(items, undo{tag, oci.Digest(digest)})
	}
	if len(items) > maxChosen {
		return nil, &problem{status: http.StatusBadRequest, text: "These are too many to restore together."}
	}
	return items, nil
}

// restoreItems restores one after the other: manifests first, because a manifest that a
// tag has brought back does not get its other tags. What an index names has to be back
// before the index, so those that fail are tried again as long as others succeed.
func (q *request) restoreItems(repo string, items []undo) error {
	slices.SortStableFunc(items, func(a, b undo) int { return strings.Compare(a.Tag, b.Tag) })
	for len(items) > 0 {
		var left []undo
		var failed error
		for _, u := range items {
			if _, err := q.h.opts.Browse.Restore(q.ctx(), repo, u.Digest, u.Tag); err != nil {
				left, failed = append(left, u), err
				continue
			}
			q.recordChange("restore", nil, repo, u.ref())
		}
		if len(left) == len(items) {
			for _, u := range left {
				q.recordChange("restore", failed, repo, u.ref())
			}
			return failed
		}
		items = left
	}
	return nil
}

// recordChange records in the audit log how a change ended.
func (q *request) recordChange(event string, err error, repo, ref string) {
	outcome := "success"
	if err != nil {
		outcome = "failure"
	}
	q.record(event, outcome, event, repo, ref)
}

// undo is what a page offers right after a deletion.
type undo struct {
	Tag    string
	Digest oci.Digest
}

// ref is what the audit log records of it.
func (u undo) ref() string {
	if u.Tag == "" {
		return string(u.Digest)
	}
	return u.Tag + "@" + string(u.Digest)
}

// undoable returns how the deletion that led to the page can be taken back, or nil. ref
// is the tag that was deleted, or the beginning of the digest.
func (q *request) undoable(repo, ref string, deleted []oci.DeletedManifest) (*undo, error) {
	switch {
	case len(ref) >= shortRef && strings.Contains(ref, ":"):
		for _, d := range deleted {
			if strings.HasPrefix(string(d.Digest), ref) {
				return &undo{Digest: d.Digest}, nil
			}
		}
	case oci.ValidTag(ref):
		list, err := q.h.opts.Browse.TagHistory(q.ctx(), repo, ref, 2)
		if images.Absent(err) || err == nil && (len(list) < 2 || list[0].Digest != "" || list[1].State == oci.StateGone) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return &undo{Tag: ref, Digest: list[1].Digest}, nil
	}
	return nil, nil
}

// removeData is what the confirmation of the deletion of a repository shows.
type removeData struct {
	Repo string
	Tags int64
	More bool
	Kept string
	// Problem says what was wrong with the form.
	Problem string
}

func (q *request) toRemove() (*removeData, error) {
	repo := q.rest
	if ok, err := q.mayBrowse(repo); !ok {
		return nil, err
	}
	if !q.may(repo, auth.Delete) {
		return nil, q.refuse("You may not delete this repository.")
	}
	info, err := q.h.opts.Browse.RepositoryInfo(q.ctx(), repo, repoCount)
	if err != nil {
		return nil, orNoImage(err)
	}
	d := &removeData{Repo: repo, Tags: info.Tags, More: info.Partial}
	d.Kept, err = q.h.opts.Browse.Undeletable(repo, nil)
	return d, err
}

// confirmRemove asks whether a repository is to be deleted.
func (q *request) confirmRemove() error {
	d, err := q.toRemove()
	if d == nil || err != nil {
		return err
	}
	q.show(http.StatusOK, "remove", "Delete "+d.Repo, d)
	return nil
}

// doRemove deletes a repository if its name was entered.
func (q *request) doRemove() error {
	d, err := q.toRemove()
	if d == nil || err != nil {
		return err
	}
	q.r.Body = http.MaxBytesReader(q.w, q.r.Body, maxForm)
	if d.Kept != "" || q.r.PostFormValue("name") != d.Repo {
		if d.Kept == "" {
			d.Problem = "Enter the name of the repository to delete it."
		}
		q.show(http.StatusConflict, "remove", "Delete "+d.Repo, d)
		return nil
	}
	_, err = q.h.opts.Browse.DeleteRepository(q.ctx(), d.Repo)
	q.recordChange("delete", err, d.Repo, "")
	if err != nil {
		return orNoImage(err)
	}
	http.Redirect(q.w, q.r, q.h.opts.Prefix+Root+"repo/"+d.Repo+"?deleted="+url.QueryEscape("*"), http.StatusSeeOther)
	return nil
}
