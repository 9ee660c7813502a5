package load

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"net/url"
	"strings"
	"time"

	"example.org/slipway/oci"
	"example.org/slipway/workload/load/imageset"
	"example.org/slipway/workload/load/wire"
)

// Fault is the error of a failed operation.
type Fault struct {
	// Kind is the name under which failures are counted: "wrong content", "status 404",
	// "timeout", "broken connection", "no connection".
	Kind string
	Err  error
}

// Error implements error.
func (f *Fault) Error() string { return f.Kind + ": " + f.Err.Error() }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Err }

// These are the kinds of faults that are not statuses.
const (
	wrongContent  = "wrong content"
	timedOut      = "timeout"
	broken        = "broken connection"
	notConnected  = "no connection"
	otherFault    = "other"
	maxRedirects  = 5
	maxListBytes  = 4 << 20
	maxPages      = 1000
	anyTag        = "latest" // may not exist: the registry checks credentials first
	manifestTypes = "Accept: " + oci.MediaTypeOCIIndex + ", " + oci.MediaTypeOCIManifest + ", " +
		oci.MediaTypeDockerIndex + ", " + oci.MediaTypeDockerManifest + "\r\n"
)

// lane makes one request after the other and checks the answers. It is not safe for
// concurrent use.
type lane struct {
	e    *endpoint
	wire *wire.Client
	rec  *recorder

	target, header []byte
	sha256, sha512 hash.Hash

	// The next fields are about the answer that is being read.
	sum  hash.Hash // nil if the content goes into kept
	room int64     // how many bytes the answer may have
	left int64     // how many of these may still come
	kept []byte
	sink func(p []byte) error
}

func newLane(ctx context.Context, e *endpoint, timeout time.Duration, rec *recorder) *lane {
	l := &lane{e: e, rec: rec, sha256: sha256.New(), sha512: sha512.New(),
		wire: wire.New(ctx, &wire.Options{TLS: e.TLS, Timeout: timeout, UserAgent: userAgent})}
	l.sink = l.take
	return l
}

// errLong is the error for an answer that has more bytes than it should have.
var errLong = errors.New("it has more bytes than it should have")

// take checks or keeps a piece of an answer.
func (l *lane) take(p []byte) error {
	if l.left -= int64(len(p)); l.left < 0 {
		return errLong
	}
	if l.sum != nil {
		_, _ = l.sum.Write(p) // a hash does not fail
		return nil
	}
	l.kept = append(l.kept, p...)
	return nil
}

// manifest fetches a manifest by tag or digest and checks it.
func (l *lane) manifest(ctx context.Context, repo, ref string, want imageset.Part) error {
	return l.content(ctx, "manifests/", repo, ref, manifestTypes, want)
}

// blob fetches a blob and checks it.
func (l *lane) blob(ctx context.Context, repo string, want imageset.Part) error {
	return l.content(ctx, "blobs/", repo, string(want.Digest), "", want)
}

func (l *lane) content(ctx context.Context, kind, repo, ref, header string, want imageset.Part) error {
	l.sum, l.room = l.sha256, want.Size
	if strings.HasPrefix(string(want.Digest), "sha512:") {
		l.sum = l.sha512
	}
	a, err := l.do(ctx, http.MethodGet, kind, repo, ref, header)
	if err == nil || errors.Is(err, errLong) && a.Status == http.StatusOK {
		err = l.judge(a, err, want)
	}
	if err == nil && a.Status == http.StatusOK {
		return nil
	}
	return l.fault(a, err, "GET "+kind+ref+" of "+repo)
}

// judge checks the content that came.
func (l *lane) judge(a wire.Answer, err error, want imageset.Part) error {
	switch {
	case a.Status != http.StatusOK:
		return nil // fault says what is wrong
	case err != nil:
		return &Fault{wrongContent, err}
	case a.Size != want.Size:
		return &Fault{wrongContent, fmt.Errorf("%d bytes came and %d should have", a.Size, want.Size)}
	}
	var sum, text [2 * sha512.Size]byte
	got := l.sum.Sum(sum[:0])
	n := hex.Encode(text[:], got)
	if _, digits, _ := strings.Cut(string(want.Digest), ":"); digits != string(text[:n]) {
		return &Fault{wrongContent, fmt.Errorf("its digest is %s and should be %s", text[:n], want.Digest)}
	}
	return nil
}

// head asks for a manifest's size and digest and checks them.
func (l *lane) head(ctx context.Context, repo, ref string, want imageset.Part) error {
	a, err := l.do(ctx, http.MethodHead, "manifests/", repo, ref, manifestTypes)
	if err == nil && a.Status == http.StatusOK {
		switch {
		case a.Size >= 0 && a.Size != want.Size:
			err = &Fault{wrongContent, fmt.Errorf("its size is said to be %d and should be %d", a.Size, want.Size)}
		case a.Digest != "" && a.Digest != string(want.Digest):
			err = &Fault{wrongContent, fmt.Errorf("its digest is said to be %s and should be %s", a.Digest, want.Digest)}
		}
	}
	return l.fault(a, err, "HEAD manifests/"+ref+" of "+repo)
}

// list asks for the tags of a repository, page by page, until a page has the given tag.
func (l *lane) list(ctx context.Context, repo, tag string) error {
	l.sum, l.room = nil, maxListBytes
	full, want := l.e.Prefix+repo, []byte(`"`+tag+`"`)
	a, err := l.do(ctx, http.MethodGet, "tags/list", repo, "", "")
	for page := 1; err == nil && a.Status == http.StatusOK && !bytes.Contains(l.kept, want); page++ {
		if next := nextPage(a.Link); next == "" || page == maxPages {
			err = &Fault{wrongContent, fmt.Errorf("tag %s is not in it", tag)}
		} else if err = l.turn(next); err == nil {
			a, err = l.ask(ctx, http.MethodGet, full, anyTag, "")
		}
	}
	return l.fault(a, err, "GET tags/list of "+repo)
}

// nextPage returns the URL of the next page of a list from its Link header, or "" if
// there is none.
func nextPage(link string) string {
	_, rest, _ := strings.Cut(link, "<")
	to, parameters, _ := strings.Cut(rest, ">")
	if !strings.Contains(parameters, "next") {
		return ""
	}
	return to
}

// turn sets l.target to the next page of a list.
func (l *lane) turn(next string) error {
	at, err := l.place()
	if err != nil {
		return err
	}
	to, err := at.Parse(next)
	if err != nil || to.Host != at.Host || to.Scheme != at.Scheme {
		return errors.New("the next page is nowhere in the registry")
	}
	if l.e.Namespace != "" {
		q := to.Query()
		q.Set("ns", l.e.Namespace)
		to.RawQuery = q.Encode()
	}
	if l.target = append(l.target[:0], to.RequestURI()...); !wire.Clean(l.target) {
		return errors.New("the next page is nowhere in the registry")
	}
	return nil
}

// do makes a request about a repository. See ask.
func (l *lane) do(ctx context.Context, method, kind, repo, ref, header string) (wire.Answer, error) {
	t := append(l.target[:0], l.e.url.Path...)
	t = append(append(t, "/v2/"...), l.e.Prefix...)
	t = append(append(append(append(t, repo...), '/'), kind...), ref...)
	l.target = append(t, l.e.ns...)
	if !wire.Clean(l.target) {
		return wire.Answer{}, errors.New("the name cannot be sent")
	}
	tag := ref
	if !strings.HasPrefix(kind, "manifests/") {
		tag = anyTag
	}
	return l.ask(ctx, method, l.e.Prefix+repo, tag, header)
}

// ask sends the request in l.target and notes how long it took. It sends credentials and
// follows redirects if the registry wants that.
func (l *lane) ask(ctx context.Context, method, repo, tag, header string) (wire.Answer, error) {
	begin := time.Now()
	shown := l.e.authorization(repo)
	a, err := l.show(method, shown, header)
	if err == nil && a.Status == http.StatusUnauthorized {
		if err = l.e.authorize(ctx, repo, tag, shown); err == nil {
			a, err = l.show(method, l.e.authorization(repo), header)
		}
	}
	if err == nil && redirects(a) {
		a, err = l.follow(method, header, a)
	}
	came := a.Size
	if method == http.MethodHead { // its Size is Content-Length, and no bytes came
		came = 0
	}
	l.rec.request(came, time.Since(begin))
	return a, err
}

// show sends the request in l.target with the given credentials, or with none if
// authorization is "".
func (l *lane) show(method, authorization, header string) (wire.Answer, error) {
	h := append(l.header[:0], header...)
	if authorization != "" {
		h = append(append(append(h, "Authorization: "...), authorization...), "\r\n"...)
	}
	l.header = h
	return l.send(&wire.Request{Host: l.e.host, Method: method, Target: l.target, Header: h})
}

// redirects reports whether an answer is a redirect.
func redirects(a wire.Answer) bool { return a.Location != "" && a.Status >= 300 && a.Status < 400 }

// place returns the URL of the request in l.target.
func (l *lane) place() (*url.URL, error) {
	u, err := url.ParseRequestURI(string(l.target))
	if err != nil {
		return nil, errors.New("the name cannot be sent")
	}
	u.Scheme, u.Host = l.e.url.Scheme, l.e.url.Host
	return u, nil
}

// follow follows the redirects of an answer to the request in l.target. It sends no
// credentials.
func (l *lane) follow(method, header string, a wire.Answer) (wire.Answer, error) {
	at, err := l.place()
	for hop := 0; err == nil && redirects(a) && hop < maxRedirects; hop++ {
		if at, err = at.Parse(a.Location); err != nil {
			return wire.Answer{}, errors.New("the redirect leads nowhere")
		}
		a, err = l.fetch(method, at, header)
	}
	return a, err
}

// fetch sends a request to any URL.
func (l *lane) fetch(method string, to *url.URL, header string) (wire.Answer, error) {
	host, err := wire.HostOf(to)
	if err != nil {
		return wire.Answer{}, err
	}
	target := []byte(to.RequestURI())
	if !wire.Clean(target) {
		return wire.Answer{}, errors.New("the redirect leads nowhere")
	}
	return l.send(&wire.Request{Host: host, Method: method, Target: target, Header: []byte(header)})
}

// send sends a request and reads the answer.
func (l *lane) send(r *wire.Request) (wire.Answer, error) {
	l.left, l.kept = l.room, l.kept[:0]
	if l.sum != nil {
		l.sum.Reset()
	}
	a, err := l.wire.Do(r, l.sink)
	if errors.Is(err, errLong) && a.Status != http.StatusOK {
		err = nil // a page about an error may be as long as it likes
	}
	return a, err
}

// fault returns a Fault for what went wrong, or nil if nothing did.
func (l *lane) fault(a wire.Answer, err error, what string) error {
	var f *Fault
	switch {
	case err == nil && a.Status == http.StatusOK:
		return nil
	case err == nil:
		return &Fault{fmt.Sprintf("status %d", a.Status), errors.New(what)}
	case errors.As(err, &f):
		return &Fault{f.Kind, fmt.Errorf("%s: %w", what, f.Err)}
	}
	return &Fault{kindOf(err, a.Status > 0), fmt.Errorf("%s: %w", what, err)}
}
