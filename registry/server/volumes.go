package server

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"example.org/slipway/oci"
	"example.org/slipway/oci/volref"
	"example.org/slipway/registry/auth"
)

// Volumes is what the volume extension serves: the places of images as block volumes.
// repo is always a valid repository name, and the client has the rights to it. The
// implementation must decide whether the repository shows the manifest.
//
// All methods may run concurrently, and ctx bounds each call. Errors of another kind than
// [oci.Error] are answered with status 500.
type Volumes interface {
	// Image returns what is known about an image. Errors: MANIFEST_UNKNOWN.
	Image(ctx context.Context, repo string, manifest oci.Digest) (VolumeImage, error)
	// List returns at most n images of a repository, beginning after a place, and the
	// place of the last image. A place is 0 or greater.
	List(ctx context.Context, repo string, after int64, n int) (list []VolumeListed, last int64, err error)
	// Queue requests that an image be built, in the file system fs, or in all configured
	// ones if fs is "". Errors: MANIFEST_UNKNOWN, UNSUPPORTED.
	Queue(ctx context.Context, repo string, manifest oci.Digest, fs string) error
	// Drop gives up the volumes of an image, in the file system fs, or in all if fs is
	// "". Errors: MANIFEST_UNKNOWN, UNSUPPORTED.
	Drop(ctx context.Context, repo string, manifest oci.Digest, fs string) error
	// Credential returns what a node needs to use the volumes of an image. If clones is
	// set, it also allows making clones of them. refused is the user of the last
	// credential, if the storage refused that credential. ctx identifies the client
	// (oci.WithActor). Errors: MANIFEST_UNKNOWN, UNSUPPORTED, DENIED, UNAVAILABLE.
	Credential(ctx context.Context, repo string, manifest oci.Digest, clones bool, refused string) (volref.Credential, error)
}

// VolumeImage is what is known about the volumes of an image.
type VolumeImage struct {
	// Records are the usable volumes, as volref.Record.
	Records []json.RawMessage `json:"records"`
	// State is "waiting", "building" or "failed" while something has to be done, and
	// Reason says why it is not done. Done is how many bytes of Total are written.
	State  string `json:"state,omitempty"`
	Reason string `json:"reason,omitempty"`
	Done   int64  `json:"done,omitempty"`
	Total  int64  `json:"total,omitempty"`
}

// VolumeListed is an image that has volumes, or is to have them.
type VolumeListed struct {
	Manifest oci.Digest `json:"manifest"`
	FS       string     `json:"fs"`
	State    string     `json:"state,omitempty"`
	Reason   string     `json:"reason,omitempty"`
	Volume   string     `json:"volume,omitempty"`
	// Size is the size of the device, and Used is how much all layers use, in bytes.
	Size int64 `json:"size,omitempty"`
	Used int64 `json:"used,omitempty"`
}

const (
	// maxVolumeList is the largest number of images on a page of a list.
	maxVolumeList = 1000
	// maxVolumeBody is the size in bytes of the longest request.
	maxVolumeBody = 4 << 10
)

// getVolumes answers GET .../volumes/<digest>.
func (s *Server) getVolumes(q *request) error {
	img, err := s.opts.Volumes.Image(q.ctx(), q.Repo, q.ext.arg)
	if err != nil {
		return err
	}
	q.w.Header()["Cache-Control"] = noStore
	return q.sendJSON(img)
}

// listVolumes answers GET .../volumes?after=<place>.
func (s *Server) listVolumes(q *request) error {
	after, n := int64(0), maxVolumeList
	query := q.r.URL.Query()
	if v := query.Get("after"); v != "" {
		var err error
		if after, err = strconv.ParseInt(v, 10, 64); err != nil || after < 0 {
			return oci.Errorf(oci.CodePaginationNumber, "after=%.40q is not the number that next was in the page before", v)
		}
	}
	if v := query.Get("n"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil || n < 1 {
			return oci.Errorf(oci.CodePaginationNumber, "n=%.40q is not a number of images", v)
		}
		n = min(n, maxVolumeList)
	}
	list, last, err := s.opts.Volumes.List(q.ctx(), q.Repo, after, n)
	if err != nil {
		return err
	}
	page := struct {
		Images []VolumeListed `json:"images"`
		Next   int64          `json:"next,omitempty"`
	}{Images: list}
	if len(list) == n {
		page.Next = last
	}
	if list == nil {
		page.Images = []VolumeListed{}
	}
	q.w.Header()["Cache-Control"] = noStore
	return q.sendJSON(page)
}

// volumeRequest is the body of a POST.
type volumeRequest struct {
	FS      string `json:"fs"`
	Clones  bool   `json:"clones"`
	Refused string `json:"refused"`
}

// readVolumeRequest reads the body of a request. The body may be absent.
func (s *Server) readVolumeRequest(q *request) (v volumeRequest, err error) {
	b, err := s.wholeBody(q, maxVolumeBody)
	if err != nil {
		return v, err
	}
	if len(b) > 0 && json.Unmarshal(b, &v) != nil {
		return v, &oci.Error{Code: oci.CodeUnsupported, Status: http.StatusBadRequest, Message: `the body is not what this endpoint takes: {"fs":"..."} or {"clones":true}`}
	}
	return v, nil
}

// buildVolumes answers POST .../volumes/<digest>.
func (s *Server) buildVolumes(q *request) error {
	v, err := s.readVolumeRequest(q)
	if err != nil {
		return err
	}
	if err := s.opts.Volumes.Queue(q.ctx(), q.Repo, q.ext.arg, v.FS); err != nil {
		return err
	}
	s.audit(q, "build volumes", string(q.ext.arg))
	return q.accepted()
}

// dropVolumes answers DELETE .../volumes/<digest>.
func (s *Server) dropVolumes(q *request) error {
	if err := s.opts.Volumes.Drop(q.ctx(), q.Repo, q.ext.arg, q.r.URL.Query().Get("fs")); err != nil {
		return err
	}
	s.audit(q, "delete", "volumes: "+string(q.ext.arg))
	return q.accepted()
}

// volumeCredential answers POST .../volumes/<digest>/credential.
func (s *Server) volumeCredential(q *request) error {
	v, err := s.readVolumeRequest(q)
	if err != nil {
		return err
	}
	if v.Clones {
		if err := s.authorize(q, q.Repo, auth.Volume|auth.Clone); err != nil {
			return err
		}
	}
	c, err := s.opts.Volumes.Credential(q.ctx(), q.Repo, q.ext.arg, v.Clones, v.Refused)
	if err != nil {
		return err
	}
	s.audit(q, "volume credential", string(q.ext.arg))
	q.w.Header()["Cache-Control"] = noStore
	return q.sendJSON(c)
}
