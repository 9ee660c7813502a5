package swiftstore_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.org/slipway/registry/objstore/objtest"
	"example.org/slipway/registry/objstore/swiftstore"
)

// fetch returns what anybody gets from an address.
func fetch(t testing.TB, url string, header map[string]string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(text)
}

func testTempURL(t *testing.T, b *bed) {
	o := b.options(b.container())
	o.Prefix = "temp ü/x"
	s := b.open(t, o)
	small, large := objtest.Content(1, 1000), objtest.Content(2, 3*chunk)
	must(t, s.Put(t.Context(), "u/small", small, false))
	upload(t, s, "u/large", large)
	for key, data := range map[string][]byte{"u/small": small, "u/large": large} {
		url, err := s.URL(t.Context(), key, time.Minute)
		must(t, err)
		if status, body := fetch(t, url, nil); status != http.StatusOK || body != string(data) {
			t.Errorf("GET of %s: got %d, %d bytes; want 200, %d", key, status, len(body), len(data))
		}
		if status, body := fetch(t, url, map[string]string{"Range": "bytes=5-9"}); status != http.StatusPartialContent || body != string(data[5:10]) {
			t.Errorf("GET of a range of %s: got %d, %q", key, status, body)
		}
		if resp, err := http.Head(url); err != nil || resp.StatusCode != http.StatusOK || resp.ContentLength != int64(len(data)) {
			t.Errorf("HEAD of %s: got %v, %v", key, resp, err)
		}
		sig := strings.Index(url, "temp_url_sig=") + len("temp_url_sig=")
		if n := strings.IndexAny(url[sig:]+"&", "&"); n != 64 {
			t.Errorf("address is signed by %d hexadecimal digits, want the 64 of SHA-256", n)
		}
		flipped := map[byte]string{'0': "1"}[url[sig]]
		if flipped == "" {
			flipped = "0"
		}
		if status, _ := fetch(t, url[:sig]+flipped+url[sig+1:], nil); status != http.StatusUnauthorized {
			t.Errorf("GET with a wrong signature: got %d, want 401", status)
		}
		if status, _ := fetch(t, strings.Replace(url, key, "u/other", 1), nil); status != http.StatusUnauthorized {
			t.Errorf("GET of another key: got %d, want 401", status)
		}
		if req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, url, nil); err != nil {
			t.Fatal(err)
		} else if resp, err := http.DefaultClient.Do(req); err != nil || resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("DELETE: got %v, %v; want 401", resp, err)
		}
		url, err = s.URL(t.Context(), key, -time.Minute)
		must(t, err)
		if status, _ := fetch(t, url, nil); status != http.StatusUnauthorized {
			t.Errorf("GET after the end: got %d, want 401", status)
		}
	}
	// The server's clock corrects a wrong clock.
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		swiftstore.SetClock(s, func() time.Time { return time.Now().Add(off) })
		_, err := s.Stat(t.Context(), "u/small")
		must(t, err)
		url, err := s.URL(t.Context(), "u/small", 10*time.Minute)
		must(t, err)
		if status, _ := fetch(t, url, nil); status != http.StatusOK {
			t.Errorf("GET with a clock that is off by %v: got %d, want 200", off, status)
		}
		url, err = s.URL(t.Context(), "u/small", -10*time.Minute)
		must(t, err)
		if status, _ := fetch(t, url, nil); status != http.StatusUnauthorized {
			t.Errorf("GET after the end with a clock that is off by %v: got %d, want 401", off, status)
		}
	}
	if _, err := s.URL(t.Context(), "../x", time.Minute); err == nil {
		t.Error("URL of an impossible key: got no error")
	}
}

func testTempURLKeys(t *testing.T, b *bed) {
	o := b.options(b.container())
	s := b.open(t, o)
	must(t, s.Put(t.Context(), "k/x", []byte("bytes"), false))
	status := func(s *swiftstore.Store) int {
		t.Helper()
		url, err := s.URL(t.Context(), "k/x", time.Minute)
		must(t, err)
		status, _ := fetch(t, url, nil)
		return status
	}
	// The second store finds the key that the first one set.
	second := b.open(t, o)
	if got := status(second); got != http.StatusOK {
		t.Errorf("second store: GET is %d, want 200", got)
	}
	given := o
	given.TempURLKey = "a key that the container does not have"
	third := b.open(t, given)
	if got := status(third); got != http.StatusUnauthorized {
		t.Errorf("store with a wrong key: GET is %d, want 401", got)
	}
	// The operator changes the key. The store notices within a minute.
	post := func(path string, header ...string) {
		t.Helper()
		h := map[string]string{}
		for i := 0; i < len(header); i += 2 {
			h[header[i]] = header[i+1]
		}
		if resp, _ := b.request(t, http.MethodPost, path, h, ""); resp.StatusCode/100 != 2 {
			t.Fatalf("POST: %s", resp.Status)
		}
	}
	post(o.Container, "X-Container-Meta-Temp-Url-Key", given.TempURLKey)
	if got := status(third); got != http.StatusOK {
		t.Errorf("store with the given key: GET is %d, want 200", got)
	}
	swiftstore.SetClock(second, func() time.Time { return time.Now().Add(2 * time.Minute) })
	if got := status(second); got != http.StatusOK {
		t.Errorf("after the key was changed: GET is %d, want 200", got)
	}
	// Without its own key the container uses the account's.
	post(o.Container, "X-Remove-Container-Meta-Temp-Url-Key", "x")
	post("", "X-Account-Meta-Temp-Url-Key-2", "the account's")
	fourth := b.open(t, o)
	if got := status(fourth); got != http.StatusOK {
		t.Errorf("with the account's key: GET is %d, want 200", got)
	}
	if resp, _ := b.request(t, http.MethodHead, o.Container, nil, ""); resp.Header.Get("X-Container-Meta-Temp-Url-Key") != "" {
		t.Error("New gave the container a key although the account has one")
	}
	post("", "X-Remove-Account-Meta-Temp-Url-Key-2", "x")
}
