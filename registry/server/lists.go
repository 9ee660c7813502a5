package server

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"example.org/slipway/oci"
)

// page reads ?n= and ?last=. n is -1 if the client left it out or empty. Distribution
// treats both alike.
func page(query url.Values) (last string, n int, err error) {
	last = query.Get("last")
	v := query.Get("n")
	if v == "" {
		return last, -1, nil
	}
	n, err = strconv.Atoi(v)
	if err != nil || n < 0 {
		return "", 0, oci.Errorf(oci.CodePaginationNumber, "n=%.20q is not a number of names", v)
	}
	return last, n, nil
}

func nextLink(path string, keep url.Values) string {
	return "<" + path + "?" + keep.Encode() + `>; rel="next"`
}

func (q *request) sendJSON(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	h := q.w.Header()
	if h.Get("Content-Type") == "" {
		h["Content-Type"] = jsonType
	}
	h["X-Content-Type-Options"] = noSniff
	h["Content-Length"] = []string{strconv.Itoa(len(b))}
	if q.r.Method == http.MethodHead {
		q.w.WriteHeader(http.StatusOK)
		return nil
	}
	_, err = q.w.Write(b)
	return ignoreClient(err)
}

// sendNames sends a page of names under a JSON key.
func (s *Server) sendNames(q *request, head map[string]any, key string, names []string, more bool, n int) error {
	if names == nil {
		names = []string{} // "tags": null breaks clients
	}
	head[key] = names
	if more && len(names) > 0 {
		keep := q.ownQuery()
		keep.Set("last", names[len(names)-1])
		keep.Set("n", strconv.Itoa(n))
		q.w.Header()["Link"] = []string{nextLink(s.location(q.ownPath()), keep)}
	}
	return q.sendJSON(head)
}

// warn adds a warning to the answer if a list may be incomplete. SPEC: registries may
// send warnings, in this form; clients should show them.
func (s *Server) warn(q *request) {
	if s.opts.Incomplete == nil {
		return
	}
	if why := s.opts.Incomplete(q.Repo); why != "" {
		q.w.Header()["Warning"] = []string{"299 - " + strconv.Quote(why)}
	}
}

// listTags answers GET /v2/<name>/tags/list. SPEC: end-8a, end-8b.
func (s *Server) listTags(q *request) error {
	last, n, err := page(q.r.URL.Query())
	if err != nil {
		return err
	}
	if n < 0 || n > s.opts.MaxList {
		n = s.opts.MaxList
	}
	tags, more, err := s.reg.Tags(q.ctx(), q.Repo, last, n)
	if err != nil {
		return err
	}
	s.warn(q)
	return s.sendNames(q, map[string]any{"name": q.ownRepo()}, "tags", tags, more && n > 0, n)
}

const (
	// catalogBatch is the least number of names that are read from the catalogue at once.
	// A client that may see few of them must not cost a query for each.
	catalogBatch = 200
	// catalogScan is about how many names one request looks at, some 20 ms of work. A
	// client that may see few of many names must not delay the server. Its page is then
	// short or empty, and has a link to continue.
	catalogScan = 10_000
)

// listRepositories answers GET /v2/_catalog with the repositories that the client may
// pull from.
func (s *Server) listRepositories(q *request) error {
	last, n, err := page(q.r.URL.Query())
	if err != nil {
		return err
	}
	if last, err = s.places.open(last); err != nil {
		return err
	}
	if n < 0 || n > s.opts.MaxCatalog {
		n = s.opts.MaxCatalog
	}
	var names []string
	more, looked := n > 0, 0
	for more && len(names) < n {
		if looked >= catalogScan {
			return s.sendShortPage(q, names, last, n)
		}
		// A page from the registry may hold few names that this client may see.
		var batch []string
		batch, more, err = s.reg.Repositories(q.ctx(), last, max(n, catalogBatch))
		if err != nil {
			return err
		}
		looked += len(batch)
		for i, name := range batch {
			last = name
			if s.open || s.opts.Auth.Listed(q.id, name) {
				if names = append(names, name); len(names) == n {
					more = more || i+1 < len(batch)
					break
				}
			}
		}
	}
	return s.sendNames(q, map[string]any{}, "repositories", names, more, n)
}

// sendShortPage ends a page of the catalogue after a repository that the client may not
// know of. The link therefore has the sealed name of that repository.
func (s *Server) sendShortPage(q *request, names []string, last string, n int) error {
	if names == nil {
		names = []string{}
	}
	keep := url.Values{"last": {s.places.seal(last)}, "n": {strconv.Itoa(n)}}
	q.w.Header()["Link"] = []string{nextLink(s.location(q.Path()), keep)}
	return q.sendJSON(map[string]any{"repositories": names})
}

// places seals names that clients send back and must not read. The key lives as long as
// the process. A client has to begin again with a list that a restart interrupts.
type places struct{ aead cipher.AEAD }

// sealMark begins a sealed name. No client would make up a name that begins with it.
const sealMark = "~place."

func newPlaces() places {
	var key [32]byte
	rand.Read(key[:]) // never fails
	block, err := aes.NewCipher(key[:])
	if err == nil {
		var p places
		if p.aead, err = cipher.NewGCMWithRandomNonce(block); err == nil {
			return p
		}
	}
	panic(err) // the error is about the length of the key, which is right
}

func (p places) seal(name string) string {
	return sealMark + base64.RawURLEncoding.EncodeToString(p.aead.Seal(nil, nil, []byte(name), nil))
}

// open returns the original of a sealed name, and other names unchanged.
func (p places) open(s string) (string, error) {
	sealed, ok := strings.CutPrefix(s, sealMark)
	if !ok {
		return s, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(sealed)
	if err == nil {
		b, err = p.aead.Open(nil, nil, b, nil)
	}
	if err != nil {
		return "", oci.Errorf(oci.CodePaginationNumber, "last=%.20q is of before the server was restarted; begin the list again", s)
	}
	return string(b), nil
}

// maxReferrers bounds one answer. An index of that many descriptors stays well below the
// 4 MiB that clients must accept.
const maxReferrers = 2000

// listReferrers answers GET /v2/<name>/referrers/<digest>. SPEC: end-12a, end-12b.
func (s *Server) listReferrers(q *request) error {
	query := q.r.URL.Query()
	artifactType := query.Get("artifactType")
	list, more, err := s.reg.Referrers(q.ctx(), q.Repo, oci.Digest(q.Ref), artifactType, query.Get("last"), maxReferrers)
	if err != nil {
		return err
	}
	s.warn(q)
	h := q.w.Header()
	if more && len(list) > 0 {
		keep := q.ownQuery()
		keep.Set("last", string(list[len(list)-1].Digest))
		if artifactType != "" {
			keep.Set("artifactType", artifactType)
		}
		h["Link"] = []string{nextLink(s.location(q.ownPath()), keep)}
	}
	if artifactType != "" {
		h["Oci-Filters-Applied"] = []string{"artifactType"}
	}
	h["Content-Type"] = []string{oci.MediaTypeOCIIndex}
	if list == nil {
		list = []oci.Descriptor{}
	}
	index := ocispec.Index{MediaType: oci.MediaTypeOCIIndex, Manifests: list}
	index.SchemaVersion = 2
	return q.sendJSON(index)
}

var _ http.Handler = (*Server)(nil)
