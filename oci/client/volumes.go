package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
)

// VolumeStatus is what a registry tells of an image as volumes.
type VolumeStatus struct {
	// Records of what can be used. Each was checked: it is of the image that was
	// asked for and has nothing that this client does not know.
	Records []volref.Record `json:"records"`
	// State is "waiting", "building" or "failed" while something is to be done, and
	// Reason why it is not, of what is furthest from done. Done bytes of Total are
	// written, where that is known.
	State  string `json:"state,omitempty"`
	Reason string `json:"reason,omitempty"`
	Done   int64  `json:"done,omitempty"`
	Total  int64  `json:"total,omitempty"`
}

// VolumeListed is an image of a repository that is volumes, or is to be.
type VolumeListed struct {
	Manifest oci.Digest `json:"manifest"`
	FS       string     `json:"fs"`
	// State and Reason as in VolumeStatus; both are empty for one that is built.
	State  string `json:"state,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Volume with the whole tree, Size of its device and Used by all layers in
	// bytes, of one that is built.
	Volume string `json:"volume,omitempty"`
	Size   int64  `json:"size,omitempty"`
	Used   int64  `json:"used,omitempty"`
}

// volumesPath is where the extension is.
const volumesPath = "_slipway/volumes"

// volumeCall is a call that concerns the volumes of a manifest.
func (c *Client) volumeCall(method, repo string, manifest oci.Digest, more string, q url.Values) call {
	return call{
		method: method, scopes: pull(repo), retry: retryAll,
		url: c.url(oci.Request{Kind: oci.KindExtension, Repo: repo, Ref: volumesPath + "/" + string(manifest) + more}, q),
	}
}

// Volumes asks where an image is as volumes. A record that this client cannot use
// is left out, with the reason if there is no other. Errors: MANIFEST_UNKNOWN, and
// UNSUPPORTED if the registry has no volumes.
func (c *Client) Volumes(ctx context.Context, repo string, manifest oci.Digest) (*VolumeStatus, error) {
	if err := checkBlob(repo, manifest); err != nil {
		return nil, err
	}
	l := c.volumeCall(http.MethodGet, repo, manifest, "", nil)
	l.notFound = oci.CodeUnsupported // of a registry that does not know the path
	var answer struct {
		VolumeStatus
		Records []json.RawMessage `json:"records"`
	}
	if _, err := c.getJSON(ctx, l, maxListBody, &answer); err != nil {
		return nil, err
	}
	st := &answer.VolumeStatus
	st.Records = make([]volref.Record, 0, len(answer.Records))
	var bad error
	for _, raw := range answer.Records {
		r, err := readRecord(raw, manifest)
		if err != nil {
			bad = errors.Join(bad, err)
			continue
		}
		st.Records = append(st.Records, *r)
	}
	if len(st.Records) == 0 && bad != nil && st.State == "" {
		st.State, st.Reason = "failed", bad.Error()
	}
	return st, nil
}

// readRecord reads and checks a record of an image. One of another version may have
// any form beside its version.
func readRecord(raw []byte, manifest oci.Digest) (*volref.Record, error) {
	var v struct{ Version int }
	var r volref.Record
	err := json.Unmarshal(raw, &v)
	if err == nil && v.Version != volref.RecordVersion {
		r.Version = v.Version
		return nil, r.Check()
	}
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	if err != nil {
		return nil, fmt.Errorf("record of volumes: %w", err)
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	if r.Manifest != manifest {
		return nil, fmt.Errorf("record of volumes: it is of the image %s and not of %s", r.Manifest, manifest)
	}
	return &r, nil
}

// ListVolumes lists the images of a repository that are volumes, or are to be.
// Errors: UNSUPPORTED if the registry has no volumes.
func (c *Client) ListVolumes(ctx context.Context, repo string) ([]VolumeListed, error) {
	if err := oci.CheckName(repo); err != nil {
		return nil, err
	}
	var out []VolumeListed
	for after := int64(0); ; {
		q := url.Values{}
		if after > 0 {
			q.Set("after", strconv.FormatInt(after, 10))
		}
		l := call{method: http.MethodGet, scopes: pull(repo), retry: retryAll, notFound: oci.CodeUnsupported,
			url: c.url(oci.Request{Kind: oci.KindExtension, Repo: repo, Ref: volumesPath}, q)}
		var page struct {
			Images []VolumeListed
			Next   int64
		}
		if _, err := c.getJSON(ctx, l, maxListBody, &page); err != nil {
			return nil, err
		}
		out = append(out, page.Images...)
		if page.Next <= after {
			return out, nil
		}
		after = page.Next
	}
}

// VolumeCredential asks for what a node needs to use the volumes of an image, with
// clones also to make clones of them. The registry may give the one that it gave
// before; refused is the user of that if the storage does not take it. Errors:
// MANIFEST_UNKNOWN also for an image without volumes that can be used, UNSUPPORTED,
// DENIED, UNAVAILABLE.
func (c *Client) VolumeCredential(ctx context.Context, repo string, manifest oci.Digest, clones bool, refused string) (volref.Credential, error) {
	var cred volref.Credential
	if err := checkBlob(repo, manifest); err != nil {
		return cred, err
	}
	l, err := withJSON(c.volumeCall(http.MethodPost, repo, manifest, "/credential", nil), struct {
		Clones  bool   `json:"clones"`
		Refused string `json:"refused,omitempty"`
	}{clones, refused})
	if err != nil {
		return cred, err
	}
	l.scopes = volume(repo, clones)
	// One more is no harm: each ends by itself.
	_, err = c.getJSON(ctx, l, maxErrorBody, &cred)
	return cred, err
}

// BuildVolume asks for an image to be built, in a file system or with "" in those
// that the registry is configured for. It does not wait. Errors: MANIFEST_UNKNOWN,
// UNSUPPORTED.
func (c *Client) BuildVolume(ctx context.Context, repo string, manifest oci.Digest, fs string) error {
	if err := checkBlob(repo, manifest); err != nil {
		return err
	}
	l, err := withJSON(c.volumeCall(http.MethodPost, repo, manifest, "", nil), map[string]string{"fs": fs})
	if err != nil {
		return err
	}
	l.scopes, l.notFound = push(repo), oci.CodeUnsupported
	resp, err := c.do(ctx, l)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// RemoveVolume gives up the volumes of an image, in a file system or with "" in
// all; the image stays. Errors: MANIFEST_UNKNOWN also for an image that has none,
// UNSUPPORTED.
func (c *Client) RemoveVolume(ctx context.Context, repo string, manifest oci.Digest, fs string) error {
	if err := checkBlob(repo, manifest); err != nil {
		return err
	}
	q := url.Values{}
	if fs != "" {
		q.Set("fs", fs)
	}
	l := c.volumeCall(http.MethodDelete, repo, manifest, "", q)
	l.notFound = oci.CodeUnsupported
	return c.delete(ctx, repo, l)
}

// withJSON is a call with a small body.
func withJSON(l call, v any) (call, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return l, err
	}
	l.header = http.Header{"Content-Type": {"application/json"}}
	l.body, err = bytesBody(b)
	return l, err
}
