package server

import (
	"context"
	"strings"

	"example.org/slipway/oci"
)

// History is what the registry remembers of changes. *registry.Registry implements it.
type History interface {
	// TagHistory returns at most n changes of a tag, the last one first.
	TagHistory(ctx context.Context, repo, tag string, n int) ([]oci.TagChange, error)
	// Deleted lists at most n manifests that can be restored, the last one first.
	Deleted(ctx context.Context, repo string, n int) ([]oci.DeletedManifest, error)
	// Restore brings a manifest back, or makes a tag point at it again.
	Restore(ctx context.Context, repo string, d oci.Digest, tag string) (oci.PutResult, error)
	// DeleteRepository deletes all manifests of a repository with their tags, and returns
	// how many manifests it deleted. They can be restored as if each had been deleted.
	DeleteRepository(ctx context.Context, repo string) (int, error)
}

const (
	// maxTagChanges is how many changes of a tag are listed.
	maxTagChanges = 1000
	// maxDeleted is how many manifests are listed that can be restored.
	maxDeleted = 1000
)

// findHistory is findExtension for the part of a path after _slipway.
func findHistory(path string) (e extEndpoint, arg string) {
	switch path {
	case "deleted":
		return deletedList, ""
	case "repository":
		return wholeRepository, ""
	}
	if rest, ok := strings.CutPrefix(path, "tags/"); ok {
		if tag, ok := strings.CutSuffix(rest, "/history"); ok {
			return tagHistory, tag
		}
	}
	if rest, ok := strings.CutPrefix(path, "deleted/"); ok {
		if digest, ok := strings.CutSuffix(rest, "/restore"); ok {
			return deletedOne, digest
		}
	}
	return extUnknown, ""
}

// getTagHistory answers GET /v2/<name>/_slipway/tags/<tag>/history.
func (s *Server) getTagHistory(q *request) error {
	list, err := s.opts.History.TagHistory(q.ctx(), q.Repo, string(q.ext.arg), maxTagChanges)
	if err != nil {
		return err
	}
	if !s.open && q.id.Anonymous() { // the names of users are not for everybody
		for i := range list {
			list[i].By = ""
		}
	}
	return q.sendJSON(map[string]any{"name": q.Repo, "tag": q.ext.arg, "changes": list})
}

// listDeleted answers GET /v2/<name>/_slipway/deleted.
func (s *Server) listDeleted(q *request) error {
	list, err := s.opts.History.Deleted(q.ctx(), q.Repo, maxDeleted)
	if err != nil {
		return err
	}
	if list == nil {
		list = []oci.DeletedManifest{}
	}
	return q.sendJSON(map[string]any{"name": q.Repo, "manifests": list})
}

// restore answers POST /v2/<name>/_slipway/deleted/<digest>/restore?tag=TAG.
func (s *Server) restore(q *request) error {
	tag := q.r.URL.Query().Get("tag")
	if tag != "" {
		if err := oci.CheckTag(tag); err != nil {
			return err
		}
	}
	res, err := s.opts.History.Restore(q.ctx(), q.Repo, q.ext.arg, tag)
	if err != nil {
		return err
	}
	s.audit(q, "restore", auditRef(res))
	if res.Tags == nil {
		res.Tags = []string{}
	}
	q.w.Header()["Docker-Content-Digest"] = []string{string(res.Digest)}
	return q.sendJSON(map[string]any{"name": q.Repo, "digest": res.Digest, "tags": res.Tags})
}

// deleteRepository answers DELETE /v2/<name>/_slipway/repository.
func (s *Server) deleteRepository(q *request) error {
	n, err := s.opts.History.DeleteRepository(q.ctx(), q.Repo)
	if n > 0 || err == nil {
		s.audit(q, "delete", "")
	}
	if err != nil {
		return err
	}
	return q.sendJSON(map[string]any{"name": q.Repo, "manifests": n})
}
