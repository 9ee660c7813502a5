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

// VolumeStatus is a registry's answer about the volumes of an image.
type VolumeStatus struct {
	// Records describe the volumes that can be used. Each record was checked: it is for
	// the image in the request, and this client knows everything in it.
	Records []volref.Record `json:"records"`
	// State, Reason, Done and Total are about the volume that is furthest from done.
	// State is "waiting", "building" or "failed" while there is something to do. Reason
	// says why the volume is not done. Done is how many bytes of Total are written, if
	// that is known.
	State  string `json:"state,omitempty"`
	Reason string `json:"reason,omitempty"`
	Done   int64  `json:"done,omitempty"`
	Total  int64  `json:"total,omitempty"`
}

// VolumeListed is an image of a repository that has volumes, or is to have them.
type VolumeListed struct {
	Manifest oci.Digest `json:"manifest"`
	FS       string     `json:"fs"`
	// State and Reason are as in VolumeStatus. Both are empty for a volume that is built.
	State  string `json:"state,omitempty"`
	Reason string `json:"reason,omitempty"`
	// For an image that is built, Volume is the volume with the whole tree, Size is the
	// size of its device, and Used is what all layers use; both are in bytes.
	Volume string `json:"volume,omitempty"`
	Size   int64  `json:"size,omitempty"`
	Used   int64  `json:"used,omitempty"`
}

// volumesPath is the path of the extension.
const volumesPath = "_slipway/volumes"

// volumeCall returns a call about the volumes of a manifest.
func (c *Client) volumeCall(method, repo string, manifest oci.Digest, more string, q url.Values) call {
	return call{
		method: method, scopes: pull(repo), retry: retryAll,
		url: c.url(oci.Request{Kind: oci.KindExtension, Repo: repo, Ref: volumesPath + "/" + string(manifest) + more}, q),
	}
}

// Volumes asks for the volumes of an image. A record that this client cannot use is left
// out. If there is no other record, the error says why. Errors: MANIFEST_UNKNOWN, and
// UNSUPPORTED if the registry has no volumes.
func (c *Client) Volumes(ctx context.Context, repo string, manifest oci.Digest) (*VolumeStatus, error) {
	if err := checkBlob(repo, manifest); err != nil {
		return nil, err
	}
	l := c.volumeCall(http.MethodGet, repo, manifest, "", nil)
	l.notFound = oci.CodeUnsupported // if the registry does not know the path
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

// readRecord parses and checks a record of an image. A record of another version may have
// any form, except for its version.
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

// ListVolumes lists the images of a repository that have volumes, or are to have them.
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

// VolumeCredential asks for the credential with which a node can use the volumes of an
// image, and, if clones is true, also make clones of them. The registry may return the
// same credential as before. If the storage has refused a credential, refused is its
// user. Errors: MANIFEST_UNKNOWN, also for an image without usable volumes; UNSUPPORTED,
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
	// A repeated request does no harm, because each credential expires by itself.
	_, err = c.getJSON(ctx, l, maxErrorBody, &cred)
	return cred, err
}

// BuildVolume asks the registry to build the volumes of an image with file system fs. If
// fs is "", it asks for the file systems that the registry is configured for. It does not
// wait for the volumes. Errors: MANIFEST_UNKNOWN, UNSUPPORTED.
func (c *Client) BuildVolume(ctx context.Context, repo string, manifest oci.Digest, fs string) error {
	if err := checkBlob(repo, manifest); err != nil {
		return err
	}
	l, err := withJSON(c.volumeCall(http.MethodPost, repo, manifest, "", nil), map[string]string{"fs": fs})
	if err != nil {
		return err
	}
	l.scopes, l.notFound = push(repo), oci.CodeUnsupported
	return closed(c.do(ctx, l))
}

// RemoveVolume removes the volumes of an image with file system fs, or all if fs is "".
// The image stays. Errors: MANIFEST_UNKNOWN, also for an image without volumes;
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

// withJSON returns l with v in JSON as its body.
func withJSON(l call, v any) (call, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return l, err
	}
	l.header = http.Header{"Content-Type": {"application/json"}}
	l.body, err = bytesBody(b)
	return l, err
}
