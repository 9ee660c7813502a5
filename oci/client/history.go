package client

import (
	"context"
	"net/http"
	"net/url"

	"example.org/slipway/oci"
)

// History reads and takes back the changes of a repository.
type History struct {
	c    *Client
	repo string
}

// HistoryOf returns the history of a repository. Its methods return UNSUPPORTED if the
// registry keeps none.
func HistoryOf(c *Client, repo string) *History { return &History{c, repo} }

// call returns a call of the extension that keeps the history of a repository.
func (h *History) call(method, path string, scopes []string, q url.Values) call {
	return call{method: method, scopes: scopes, retry: retryAll, notFound: oci.CodeUnsupported, // if the registry does not know the path
		url: h.c.url(oci.Request{Kind: oci.KindExtension, Repo: h.repo, Ref: "_slipway/" + path}, q)}
}

// Tag returns the changes of a tag, the last one first. Errors: MANIFEST_UNKNOWN.
func (h *History) Tag(ctx context.Context, tag string) ([]oci.TagChange, error) {
	if err := oci.CheckName(h.repo); err != nil {
		return nil, err
	}
	if err := oci.CheckTag(tag); err != nil {
		return nil, err
	}
	var answer struct {
		Changes []oci.TagChange `json:"changes"`
	}
	_, err := h.c.getJSON(ctx, h.call(http.MethodGet, "tags/"+tag+"/history", pull(h.repo), nil), maxListBody, &answer)
	return answer.Changes, err
}

// Deleted lists the manifests that were deleted and can be restored, the last one first.
func (h *History) Deleted(ctx context.Context) ([]oci.DeletedManifest, error) {
	if err := oci.CheckName(h.repo); err != nil {
		return nil, err
	}
	var answer struct {
		Manifests []oci.DeletedManifest `json:"manifests"`
	}
	_, err := h.c.getJSON(ctx, h.call(http.MethodGet, "deleted", push(h.repo), nil), maxListBody, &answer)
	return answer.Manifests, err
}

// Restore brings a deleted manifest back, with its tags. With a tag, only that tag points
// at the manifest again; the manifest need not have been deleted. It returns the tags
// that were set. Errors: MANIFEST_UNKNOWN.
func (h *History) Restore(ctx context.Context, d oci.Digest, tag string) (tags []string, err error) {
	if err := checkBlob(h.repo, d); err != nil {
		return nil, err
	}
	q := url.Values{}
	if tag != "" {
		q.Set("tag", tag)
	}
	var answer struct {
		Tags []string `json:"tags"`
	}
	_, err = h.c.getJSON(ctx, h.call(http.MethodPost, "deleted/"+string(d)+"/restore", push(h.repo), q), maxListBody, &answer)
	return answer.Tags, err
}

// DeleteRepository deletes all manifests of the repository with their tags, and returns
// how many manifests were deleted. Errors: NAME_UNKNOWN, and DENIED if a tag is immutable.
func (h *History) DeleteRepository(ctx context.Context) (manifests int, err error) {
	if err := oci.CheckName(h.repo); err != nil {
		return 0, err
	}
	l := h.call(http.MethodDelete, "repository", remove(h.repo), nil)
	l.retry = retryStatus // as for every deletion
	var answer struct {
		Manifests int `json:"manifests"`
	}
	_, err = h.c.getJSON(ctx, l, maxListBody, &answer)
	return answer.Manifests, err
}
