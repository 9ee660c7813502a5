package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"

	"example.org/slipway/oci"
)

var (
	// ErrNothingListed says that the answer to a list request is a JSON object with
	// nothing in it, or only with the name of the repository. Some registries answer so
	// if there is nothing to list. The caller has to decide whether that is the case or
	// the answer has lost its list.
	ErrNothingListed = errors.New("the answer has neither a list nor anything else")

	errNoList = errors.New("the answer has no list")
)

// Repositories implements [oci.Lister] with Docker's catalogue.
func (c *Client) Repositories(ctx context.Context, last string, n int) ([]string, bool, error) {
	l := c.listCall(oci.Request{Kind: oci.KindCatalog}, []string{auth.ScopeRegistryCatalog})
	l.notFound = oci.CodeUnsupported
	return c.list(ctx, l, last, n)
}

// Tags implements [oci.Lister].
func (c *Client) Tags(ctx context.Context, repo, last string, n int) ([]string, bool, error) {
	if err := oci.CheckName(repo); err != nil {
		return nil, false, err
	}
	return c.list(ctx, c.listCall(oci.Request{Kind: oci.KindTags, Repo: repo}, pull(repo)), last, n)
}

func (c *Client) listCall(r oci.Request, scopes []string) call {
	return call{method: http.MethodGet, url: c.url(r, nil), scopes: scopes, retry: retryAll, notFound: oci.CodeNameUnknown}
}

// list returns a page of names. Not all registries page, sort, or honour the parameters
// last and n. So list brings the answer into the form that oci.Lister promises.
func (c *Client) list(ctx context.Context, l call, last string, n int) ([]string, bool, error) {
	if n < 0 {
		return nil, false, oci.Errorf(oci.CodePaginationNumber, "a page cannot have %d names", n)
	}
	q := url.Values{"n": {strconv.Itoa(n)}}
	if last != "" {
		q.Set("last", last)
	}
	l.url.RawQuery = q.Encode()
	names, next, err := c.namesBehind(ctx, l, last, n)
	if err != nil {
		return nil, false, err
	}
	if next == nil && (last == "" || len(names) > n || slices.Contains(names, last)) { // it is the whole list
		slices.Sort(names)
		names = slices.DeleteFunc(slices.Compact(names), func(s string) bool { return s <= last })
	}
	// Keep the order of a registry that pages, even if that order is different. Then a
	// request for the names after the last one misses none.
	if len(names) > n {
		return names[:n:n], true, nil
	}
	return names, next != nil, nil
}

// namesBehind gets one page that is not empty. If a registry does not honour the
// parameter last, namesBehind gets all its pages. It recognises such a registry by its
// answer, or by a next link without that parameter.
func (c *Client) namesBehind(ctx context.Context, l call, last string, n int) (names []string, next *url.URL, err error) {
	been := map[string]bool{}
	for {
		page, next, err := c.namesPage(ctx, l)
		if err != nil {
			return nil, nil, err
		}
		names = append(names, page...)
		if next == nil || n == 0 || len(names) > 0 && next.Query().Has("last") && (last == "" || !slices.Contains(names, last)) {
			return names, next, nil
		}
		if been[l.url.String()] = true; been[next.String()] || len(been) == maxPages {
			return nil, nil, fmt.Errorf("GET %s: the list has no end; there were %d pages", bare(l.url), len(been))
		}
		l.url = next
	}
}

// namesPage gets one page of a catalogue or a tag list.
func (c *Client) namesPage(ctx context.Context, l call) ([]string, *url.URL, error) {
	var page map[string]json.RawMessage
	resp, err := c.getJSON(ctx, l, maxListBody, &page)
	if err != nil {
		return nil, nil, err
	}
	list, ok := page["tags"]
	if !ok {
		list, ok = page["repositories"]
	}
	if !ok { // the list is missing, not just empty
		delete(page, "name")
		err := errNoList
		if len(page) == 0 {
			err = ErrNothingListed
		}
		return nil, nil, fmt.Errorf("GET %s: %w", bare(l.url), err)
	}
	var names []string
	if err := json.Unmarshal(list, &names); err != nil {
		return nil, nil, fmt.Errorf("GET %s: %w", bare(l.url), err)
	}
	next, err := c.nextPage(l.url, resp)
	return names, next, err
}

// getJSON gets a JSON document of at most limit bytes.
func (c *Client) getJSON(ctx context.Context, l call, limit int64, v any) (http.Header, error) {
	resp, err := c.do(ctx, l)
	if err != nil {
		return nil, err
	}
	b, err := readAll(resp, limit)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return nil, fmt.Errorf("GET %s: %w", bare(l.url), err)
	}
	return resp.Header, nil
}

// nextPage returns the URL in the Link header, or nil at the end of a list. A registry
// behind a proxy may refer to itself by the address that it has there. What follows in the
// list is then asked for where the page came from.
func (c *Client) nextPage(from *url.URL, h http.Header) (*url.URL, error) {
	link := parseLink(h.Values("Link"))
	if link == "" {
		return nil, nil
	}
	ref, err := url.Parse(link)
	if err != nil {
		return nil, fmt.Errorf("GET %s: the registry answered with a malformed Link", bare(from))
	}
	if u, err := c.location(from, link); err == nil {
		return u, nil
	}
	u := *from
	u.RawQuery = ref.RawQuery
	return &u, nil
}

// parseLink returns the target of the link with rel="next" (RFC 8288), or "".
func parseLink(values []string) string {
	for _, s := range values {
		for {
			_, rest, ok := strings.Cut(s, "<")
			if !ok {
				break
			}
			target, rest, ok := strings.Cut(rest, ">")
			if !ok {
				break
			}
			params := rest
			if i := strings.IndexByte(rest, '<'); i >= 0 { // parameters of the next link do not belong to this one
				params = rest[:i]
			}
			if isNext(params) {
				return target
			}
			s = rest
		}
	}
	return ""
}

// isNext reports whether rel=next is among a link's parameters. Some registries send a
// link without parameters, which can only be the next one.
func isNext(params string) bool {
	params = strings.Trim(params, " ,;")
	if params == "" {
		return true
	}
	for p := range strings.SplitSeq(params, ";") {
		k, v, _ := strings.Cut(strings.Trim(p, " ,"), "=")
		if strings.EqualFold(strings.TrimSpace(k), "rel") && strings.EqualFold(strings.Trim(strings.TrimSpace(v), `"`), "next") {
			return true
		}
	}
	return false
}

// Referrers implements [oci.Lister] with the referrers API, or with the referrers tag if
// the registry does not have that API. Registries page in different orders, so each call
// reads the whole list. Therefore ask for many referrers at once.
func (c *Client) Referrers(ctx context.Context, repo string, d oci.Digest, artifactType, last string, n int) ([]oci.Descriptor, bool, error) {
	all, err := c.allReferrers(ctx, repo, d, artifactType)
	if err != nil {
		return nil, false, err
	}
	slices.SortStableFunc(all, func(a, b oci.Descriptor) int { return strings.Compare(string(a.Digest), string(b.Digest)) })
	all = slices.CompactFunc(all, func(a, b oci.Descriptor) bool { return a.Digest == b.Digest })
	i := 0
	for i < len(all) && string(all[i].Digest) <= last {
		i++
	}
	all = all[i:]
	if n = max(n, 0); len(all) > n {
		return all[:n], n > 0, nil
	}
	return all, false, nil
}

func (c *Client) allReferrers(ctx context.Context, repo string, d oci.Digest, artifactType string) ([]oci.Descriptor, error) {
	if err := checkBlob(repo, d); err != nil {
		return nil, err
	}
	l := c.listCall(oci.Request{Kind: oci.KindReferrers, Repo: repo, Ref: string(d)}, pull(repo))
	if artifactType != "" {
		l.url.RawQuery = url.Values{"artifactType": {artifactType}}.Encode()
	}
	l.header = http.Header{"Accept": {ocispec.MediaTypeImageIndex}}
	l.accept = []int{http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusNotImplemented}
	var all []oci.Descriptor
	been := map[string]bool{}
	for pages := 0; l.url != nil; pages++ {
		at := l.url.String()
		if been[at] || pages == maxPages {
			return nil, fmt.Errorf("GET %s: the list has no end; there were %d pages", bare(l.url), pages)
		}
		been[at] = true
		page, next, ok, err := c.referrersPage(ctx, l, artifactType)
		if err != nil {
			return nil, err
		}
		if !ok && pages == 0 {
			index, err := c.taggedReferrers(ctx, repo, d)
			if err != nil {
				return nil, err
			}
			return ofType(index.Manifests, artifactType), nil
		}
		if !ok {
			return nil, fmt.Errorf("GET %s: page %d of the referrers is missing", bare(l.url), pages+1)
		}
		all, l.url = append(all, page...), next
	}
	return all, nil
}

// referrersPage gets one page of referrers of a type. ok is false if the registry has no
// referrers API.
func (c *Client) referrersPage(ctx context.Context, l call, artifactType string) (page []oci.Descriptor, next *url.URL, ok bool, err error) {
	resp, err := c.do(ctx, l)
	if err != nil {
		return nil, nil, false, err
	}
	// SPEC: a registry with the API answers with the index's media type. Some registries
	// call the answer plain JSON. A registry without the API may answer with a page of
	// its web interface.
	if resp.StatusCode != http.StatusOK || isText(resp.Header) {
		finish(resp)
		return nil, nil, false, nil
	}
	b, err := readAll(resp, maxListBody)
	if err != nil {
		return nil, nil, false, err
	}
	var index struct {
		Manifests json.RawMessage `json:"manifests"`
	}
	if err = json.Unmarshal(b, &index); err == nil && index.Manifests == nil {
		err = errNoList
	}
	if err == nil {
		err = json.Unmarshal(index.Manifests, &page)
	}
	if i := slices.IndexFunc(page, func(d oci.Descriptor) bool { return oci.CheckDigest(d.Digest) != nil }); err == nil && i >= 0 {
		err = fmt.Errorf("number %d of the list has no digest", i+1)
	}
	if err != nil {
		return nil, nil, false, fmt.Errorf("GET %s: %w", bare(l.url), err)
	}
	if !slices.Contains(splitList(resp.Header.Values("OCI-Filters-Applied")), "artifactType") {
		page = ofType(page, artifactType)
	}
	next, err = c.nextPage(l.url, resp.Header)
	return page, next, true, err
}

// isText reports whether an answer is text for people.
func isText(h http.Header) bool {
	t, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && (strings.HasPrefix(t, "text/") || t == "application/xhtml+xml")
}

func splitList(values []string) []string {
	var list []string
	for _, v := range values {
		for s := range strings.SplitSeq(v, ",") {
			list = append(list, strings.TrimSpace(s))
		}
	}
	return list
}

// ofType returns the descriptors with the given artifact type, or all if it is "".
func ofType(list []oci.Descriptor, artifactType string) []oci.Descriptor {
	if artifactType == "" {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(d oci.Descriptor) bool { return d.ArtifactType != artifactType })
}
