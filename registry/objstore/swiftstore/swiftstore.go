// Package swiftstore keeps objects in a container of OpenStack Swift.
//
// The object of key a/b/c is the Swift object <prefix>a/b/c. An upload of no more than
// one chunk becomes one Swift object, sent when it is committed. A larger upload is
// stored in segments as its bytes come. Commit then puts a static large object (SLO)
// under the key: a manifest that names the segments. Nothing is copied, and the manifest
// atomically replaces what was under the key.
//
// # Names
//
// The objects of the upload id are in the same container, below
// <prefix>slipway/segments/<id>/. Keys there are refused, and List omits them.
//
//	d<offset>-<tag>  a segment: the upload's bytes from offset. Never written
//	                 twice with other bytes, since tag is random.
//	m<number>-<tag>  a manifest of segments, where one manifest cannot hold them all
//	state            the segments of a suspended upload, written by Suspend
//	key-<number>     a key that the upload was or will be committed under; written
//	                 before the manifest
//
// An upload's state, as Suspend returns it, is the id.
//
// # Which segments are alive
//
// The manifest under a key has the upload's id in its metadata. The objects key-0, key-1
// and so on (Move adds one) name the keys that may have such a manifest. So the segments
// are alive as long as one of these keys has a manifest with that id. Delete and Commit
// first remove the object and then the old segments, if nothing refers to these any more.
// If a process dies in between, SweepUploads removes the segments. Put and the Commit of
// a small upload leave the old segments to SweepUploads, too, because they do not examine
// what they replace. SweepUploads checks every upload that is old enough, with two
// requests for each.
//
// A Commit that got no answer may still have its effect later. Hence it leaves the
// segments alone, and SweepUploads decides when they are old.
//
// # What is relied on
//
// Swift is eventually consistent. This package relies on the following:
//
//   - A GET or HEAD finds a new object as soon as its PUT has succeeded. The reason is
//     that a PUT answers 201 when a majority of the replicas is on disk, and a read asks
//     all replicas before it answers 404.
//   - Listings lag behind. Nothing that matters is decided by a listing alone: Resume
//     reads the state object, and the objects themselves show which segments are alive. A
//     sweep removes only segments that both the listing and the objects show as dead.
//   - While the newer replicas of an overwritten object cannot be reached, a read may
//     return the old object. This hardly matters: keys of objects name their content, and
//     segments are never overwritten. For state and manifests, where it would matter, the
//     read asks for the newest replica.
//   - Swift checks "If-None-Match: *" before it reads the body, so of two
//     conditional Puts to one key from two processes at the same moment both may
//     succeed, and the later one stays. Within one process one of them wins.
//
// The caller must not use an upload twice at the same time. If it happens nevertheless,
// each commit has its own segments.
package swiftstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.org/slipway/registry/objstore"
)

const (
	// DefaultChunkSize is the size of segments, in bytes.
	DefaultChunkSize = 20 << 20
	// DefaultTimeout is how long the server may be silent.
	DefaultTimeout = time.Minute

	// maxPrefix bounds Options.Prefix, in bytes: with the longest key it stays
	// below the 1024 bytes that Swift allows for a name.
	maxPrefix = 256
	// segmentDir is below the prefix. Keys in it are reserved.
	segmentDir = "slipway/segments/"
)

// Options are the options of a Store. AuthURL, Container and the credentials that the
// identity service asks for are required.
type Options struct {
	// AuthURL is the identity service: http://host/auth/v1.0 for tempauth and
	// others of its kind, https://host:5000/v3 for Keystone.
	AuthURL string
	// AuthVersion is 1, 2 or 3. Default 0: what AuthURL says.
	AuthVersion int
	// Username and Password identify the user. Keystone also accepts UserID in place of
	// Username.
	Username, UserID, Password string
	// Tenant and TenantID give the tenant (also called project) by name or id.
	Tenant, TenantID string
	// Domain and DomainID give the user's domain by name or id (Keystone v3).
	Domain, DomainID string
	// TenantDomain is the tenant's domain. Default: the user's.
	TenantDomain, TenantDomainID string
	// TrustID is a trust to act under in place of a tenant (Keystone v3).
	TrustID string
	// ApplicationCredentialSecret replaces the password (Keystone v3). It needs
	// ApplicationCredentialID, or else ApplicationCredentialName together with the user.
	ApplicationCredentialID, ApplicationCredentialName, ApplicationCredentialSecret string
	// Region is a region of the service catalogue. Default: the first.
	Region string
	// EndpointType is a type of endpoints in the service catalogue: public, internal or
	// admin. Default public. With another type, the addresses that URL returns work only
	// for clients that can reach that endpoint.
	EndpointType string

	// Container is created if it is missing and the user may create it.
	Container string
	// Prefix is put before each key, so that several stores can share a
	// container. A slash is added if it has none at its end. Default none.
	Prefix string
	// ChunkSize is the size of segments, in bytes, and the size up to which an upload
	// becomes a plain object. An upload holds up to two chunks in RAM. ChunkSize is
	// fitted into what the cluster allows. Default [DefaultChunkSize].
	ChunkSize int64
	// TempURLKey signs the addresses of URL. Default: the key of the container or
	// the account; if neither has one, the container is given one.
	TempURLKey string

	// Timeout is how long the server may be silent within a request. Default
	// [DefaultTimeout].
	Timeout time.Duration
	// CAFile holds certificates, in PEM, to be trusted beside the system's.
	CAFile string
	// InsecureSkipVerify trusts any certificate.
	InsecureSkipVerify bool
	// Transport sends the requests. Default: one with the two options above.
	Transport http.RoundTripper
}

// Store is an [objstore.Store], [objstore.UploadSweeper], [objstore.Mover] and
// [objstore.Redirector] in a container. It is no [objstore.Opener], because reads at
// offsets would cost a request each, and no [objstore.KeyedUploader], because an early
// key saves nothing.
type Store struct {
	c         *client
	container string
	prefix    string // "" or with a slash at its end
	limits    limits
	small     int64 // a last segment below this is read back and written again with what follows
	buffers   sync.Pool
	temp      tempKey
	taken     [64]chan struct{} // each lets one conditional Put at a time pass, by hash of the key
	seed      maphash.Seed
	closed    atomic.Bool
	pageSize  string // how many objects a listing gives at once; default: the server's
}

var (
	_ objstore.Store         = (*Store)(nil)
	_ objstore.UploadSweeper = (*Store)(nil)
	_ objstore.Mover         = (*Store)(nil)
	_ objstore.Redirector    = (*Store)(nil)
)

// limits are the limits that the cluster reports.
type limits struct {
	chunk       int64 // bytes of a segment
	maxSegments int   // of one manifest
	digest      string
}

// New opens the store, and creates the container if it is missing. ctx bounds only New
// itself.
func New(ctx context.Context, o Options) (*Store, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	c, err := newClient(&o)
	if err != nil {
		return nil, err
	}
	s := &Store{c: c, container: o.Container, seed: maphash.MakeSeed()}
	if o.Prefix != "" {
		s.prefix = strings.TrimSuffix(o.Prefix, "/") + "/"
	}
	for i := range s.taken {
		s.taken[i] = make(chan struct{}, 1)
	}
	if err := s.probe(ctx, &o); err != nil {
		c.close()
		return nil, err
	}
	return s, nil
}

func (o *Options) check() error {
	switch {
	case o.AuthURL == "":
		return errors.New("swift: the URL of the identity service is missing")
	case o.Container == "" || len(o.Container) > 256 || strings.ContainsAny(o.Container, "/\x00"):
		return fmt.Errorf("swift: %q cannot be the name of a container", o.Container)
	case strings.HasPrefix(o.Prefix, "/") || len(o.Prefix) > maxPrefix || strings.Contains(o.Prefix, "//") || strings.Contains(o.Prefix, "\x00"):
		return fmt.Errorf("swift: %q cannot be a prefix", o.Prefix)
	case o.AuthVersion < 0 || o.AuthVersion > 3:
		return fmt.Errorf("swift: there is no version %d of authentication: 1, 2 or 3", o.AuthVersion)
	case o.AuthVersion == 0 && !strings.Contains(o.AuthURL, "v1") && !strings.Contains(o.AuthURL, "v2") && !strings.Contains(o.AuthURL, "v3"):
		return errors.New("swift: the URL of the identity service does not tell the version of authentication: set it")
	case o.ChunkSize < 0:
		return fmt.Errorf("swift: chunk size %d is negative", o.ChunkSize)
	}
	return nil
}

// probe authenticates, learns what the cluster allows, and checks that the container is
// there.
func (s *Store) probe(ctx context.Context, o *Options) error {
	if _, err := s.c.session(ctx, nil); err != nil {
		return err
	}
	info, err := s.info(ctx)
	if err != nil {
		return err
	}
	chunk := cmp.Or(o.ChunkSize, DefaultChunkSize)
	s.limits = limits{
		chunk:       max(min(chunk, info.Swift.MaxFileSize), info.SLO.MinSegmentSize),
		maxSegments: max(info.SLO.MaxSegments, 2),
		digest:      info.digest(),
	}
	s.small = max(s.limits.chunk/4, info.SLO.MinSegmentSize)
	if err := s.makeContainer(ctx); err != nil {
		return err
	}
	return s.temp.init(ctx, s, o.TempURLKey)
}

// makeContainer makes the container unless it is there.
func (s *Store) makeContainer(ctx context.Context) error {
	_, err := s.c.call(ctx, &request{method: http.MethodHead, path: s.container, last: true})
	if statusOf(err) == http.StatusNotFound {
		_, err = s.c.call(ctx, &request{method: http.MethodPut, path: s.container})
		if st := statusOf(err); st == http.StatusForbidden || st == http.StatusUnauthorized {
			return fmt.Errorf("swift: container %q does not exist and the user may not make it: make it, or give the user the right to: %w", s.container, err)
		}
	}
	switch statusOf(err) {
	case http.StatusForbidden, http.StatusUnauthorized:
		return fmt.Errorf("swift: the user may not use container %q: check user, tenant and the container's access lists: %w", s.container, err)
	case http.StatusNotFound:
		return fmt.Errorf("swift: the account of container %q does not exist: check tenant and region: %w", s.container, err)
	}
	if err != nil {
		return fmt.Errorf("swift: open container %q: %w", s.container, err)
	}
	return nil
}

// clusterInfo is what GET /info returns, as far as it matters here.
type clusterInfo struct {
	Swift struct {
		MaxFileSize int64 `json:"max_file_size"`
	} `json:"swift"`
	SLO *struct {
		MinSegmentSize int64 `json:"min_segment_size"`
		MaxSegments    int   `json:"max_manifest_segments"`
	} `json:"slo"`
	TempURL *struct {
		Digests []string `json:"allowed_digests"`
	} `json:"tempurl"`
}

// digest returns the hash with which temporary addresses are signed, or "" if the cluster
// has none. Clusters that do not list their hashes know only sha1.
func (i *clusterInfo) digest() string {
	if i.TempURL == nil {
		return ""
	}
	for _, d := range i.TempURL.Digests {
		if d == "sha256" {
			return d
		}
	}
	return "sha1"
}

// info asks the cluster what it can do. A cluster that does not answer this is taken to
// have Swift's default settings.
func (s *Store) info(ctx context.Context) (*clusterInfo, error) {
	info := &clusterInfo{}
	resp, err := s.c.do(ctx, &request{method: http.MethodGet, info: true})
	switch st := statusOf(err); {
	case err == nil:
		defer resp.Body.Close()
		if err := json.NewDecoder(limitBody(resp.Body, 1<<20)).Decode(info); err != nil {
			return nil, fmt.Errorf("swift: read what the cluster can do: %w", err)
		}
		if info.SLO == nil {
			return nil, errors.New("swift: the cluster has no static large objects (slo in the proxy's pipeline), which uploads are made of")
		}
	case st >= 400 && st < 500:
		if err := json.Unmarshal([]byte(`{"slo":{},"tempurl":{}}`), info); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("swift: ask what the cluster can do: %w", err)
	}
	// Swift's defaults: 5 GiB + 2, 1 and 1000.
	info.Swift.MaxFileSize = max(cmp.Or(info.Swift.MaxFileSize, 5<<30), 1)
	info.SLO.MinSegmentSize = max(info.SLO.MinSegmentSize, 1)
	info.SLO.MaxSegments = cmp.Or(info.SLO.MaxSegments, 1000)
	return info, nil
}

// Close releases the store's connections. Requests under way continue.
func (s *Store) Close() error {
	if !s.closed.Swap(true) {
		s.c.close()
	}
	return nil
}

// begin makes the checks with which every method starts.
func (s *Store) begin(ctx context.Context) error {
	if s.closed.Load() {
		return fmt.Errorf("object store in container %s: %w", s.container, fs.ErrClosed)
	}
	return ctx.Err()
}

// beginKey is like begin, for a method with a key.
func (s *Store) beginKey(ctx context.Context, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	if strings.HasPrefix(key, segmentDir) {
		return fmt.Errorf("key %q: %s is kept for the Swift store", key, segmentDir)
	}
	return s.begin(ctx)
}

// path is the place of an object below the account.
func (s *Store) path(name string) string { return s.container + "/" + s.prefix + name }
