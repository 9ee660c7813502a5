package serve

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/registry"
	"example.org/slipway/registry/server"
	"example.org/slipway/registry/storage"
)

// signer returns addresses, or none.
type signer struct{ err error }

func (s signer) URL(_ context.Context, key string, valid time.Duration) (string, error) {
	return "http://store/" + key + "?for=" + valid.String(), s.err
}

func TestRedirectRules(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	held := digest.FromString("held")
	c, _, err := config.Parse(strings.NewReader(`version: 0.1
storage:
  s3: {bucket: b}
  redirect:
    mode: large
    min_size: 1MiB
    expiry: 5m
    rules:
    - {repositories: [secret/**], mode: never}
    - {repositories: [models/**], networks: [10.0.0.0/8, "2001:db8::/32"], mode: always}
    - {networks: ["192.0.2.1"], mode: uncached}
    - {repositories: ["ci/*"], mode: never}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := redirectRules(&c.Storage.Redirect)
	if err != nil {
		t.Fatal(err)
	}
	r := &redirector{store: signer{}, away: func() error { return nil }, rules: rules, min: int64(c.Storage.Redirect.MinSize), expiry: c.Storage.Redirect.Expiry,
		holds:  func(key string) bool { return key == storage.BlobKey(held) },
		pulled: func(context.Context, registry.Event) error { return nil }}
	for _, tc := range []struct {
		repo, client string
		blob         string
		size         int64
		want         bool
	}{
		{"app", "198.51.100.1:99", "x", mib, true},
		{"app", "198.51.100.1:99", "x", mib - 1, false},
		{"app", "198.51.100.1:99", "held", mib, true}, // large is not looked up
		{"app", "@", "x", mib, true},
		{"secret/a/b", "10.0.0.1:99", "x", mib, false},
		{"models/llm", "10.0.0.1:99", "x", 65 * kib, true},
		{"models/llm", "10.0.0.1:99", "x", 64 * kib, false}, // the blob is in the server's own memory
		{"models/llm", "10.0.0.1", "x", 65 * kib, true},     // the address comes from a proxy
		{"models/llm", "[::ffff:10.0.0.1]:99", "x", 65 * kib, true},
		{"models/llm", "[2001:db8::1%eth0]:99", "x", 65 * kib, true},
		{"models/llm", "11.0.0.1:99", "x", 65 * kib, false}, // the last rule
		{"models/llm", "@", "x", 65 * kib, false},
		{"app", "192.0.2.1:99", "x", mib, true},
		{"app", "192.0.2.1:99", "x", mib - 1, false},
		{"app", "192.0.2.1:99", "held", mib, false},
		{"ci/app", "192.0.2.1:99", "x", mib, true}, // the first rule that applies
		{"ci/app", "192.0.2.2:99", "x", mib, false},
	} {
		q := server.Redirect{Repo: tc.repo, Client: tc.client, Blob: oci.Descriptor{Digest: digest.FromString(tc.blob), Size: tc.size}}
		got, err := r.Redirect(t.Context(), q)
		want := ""
		if tc.want {
			want = "http://store/" + storage.BlobKey(q.Blob.Digest) + "?for=5m0s"
		}
		if err != nil || got != want {
			t.Errorf("%s of %d bytes from %s for %s: got %q, %v; want %q", tc.blob, tc.size, tc.repo, tc.client, got, err, want)
		}
	}
	if !ever(rules) || ever([]redirectRule{{mode: "never"}}) {
		t.Error("whether any client is ever sent elsewhere")
	}

	q := server.Redirect{Repo: "app", Client: "@", Blob: oci.Descriptor{Digest: held, Size: mib}}
	var events []registry.Event
	r.pulled = func(_ context.Context, e registry.Event) error { events = append(events, e); return nil }
	if _, err := r.Redirect(t.Context(), q); err != nil || len(events) != 1 || events[0].Repo != "app" || !events[0].Blob || events[0].Action != registry.ActionPull {
		t.Errorf("events %+v, %v; want the pull", events, err)
	}
	part := q
	part.Part, part.Offset = true, 5
	if url, err := r.Redirect(t.Context(), part); err != nil || url == "" || len(events) != 1 {
		t.Errorf("a part: sent to %q, %v, events %+v; want it sent, and no second pull", url, err, events)
	}
	// A blob that a mirror is still fetching is not in the store yet.
	r.stored = func(context.Context, string, oci.Digest) bool { return false }
	if url, err := r.Redirect(t.Context(), q); err != nil || url != "" {
		t.Errorf("a blob that is not stored yet: sent to %q, %v", url, err)
	}
	r.stored = func(_ context.Context, repo string, d oci.Digest) bool { return repo == "app" && d == held }
	if url, err := r.Redirect(t.Context(), part); err != nil || url == "" {
		t.Errorf("a blob that is stored: sent to %q, %v", url, err)
	}
	failure := errors.New("no key")
	r.store = signer{failure}
	if got, err := r.Redirect(t.Context(), q); got != "" || !errors.Is(err, failure) {
		t.Errorf("got %q, %v; want the failure", got, err)
	}
	if len(events) != 1 {
		t.Error("a pull was recorded that was none")
	}
}
