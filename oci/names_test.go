package oci_test

import (
	"fmt"
	"slices"
	"testing"

	"example.org/slipway/oci"
)

// TestAllNames lists pages of registries that do as the specification says, and of two that do
// not: one ignores last, and one promises more and sends nothing.
func TestAllNames(t *testing.T) {
	var want []string
	for i := range 2500 {
		want = append(want, fmt.Sprintf("r%04d", i))
	}
	after := func(last string, n int) ([]string, bool, error) {
		i, _ := slices.BinarySearch(want, last+"\x00")
		rest := want[i:]
		return rest[:min(n, len(rest))], len(rest) > n, nil
	}
	calls := 0
	for name, list := range map[string]func(last string, n int) ([]string, bool, error){
		"pages": after,
		"no end": func(last string, n int) ([]string, bool, error) {
			names, _, err := after(last, n)
			return names, true, err
		},
	} {
		if got, err := oci.AllNames(list); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %d names, %v, want %d", name, len(got), err, len(want))
		}
	}
	got, err := oci.AllNames(func(string, int) ([]string, bool, error) { calls++; return []string{"a", "b"}, true, nil })
	if err != nil || calls != 2 || len(got) != 4 {
		t.Errorf("a registry that ignores last: %q, %v after %d requests, want two", got, err, calls)
	}
	if _, err := oci.AllNames(func(last string, n int) ([]string, bool, error) { return nil, false, fmt.Errorf("away") }); err == nil {
		t.Error("a failure is not told")
	}
}

func TestParseReference(t *testing.T) {
	d := string(oci.SHA256(nil))
	for in, want := range map[string][2]string{
		"docker.io/library/nginx":           {"docker.io/library/nginx", "latest"},
		"docker.io/library/nginx:1.27":      {"docker.io/library/nginx", "1.27"},
		"docker.io/nginx@" + d:              {"docker.io/nginx", d},
		"docker.io/library/nginx:1.27@" + d: {"docker.io/library/nginx", d},
	} {
		repo, ref, err := oci.ParseReference(in)
		if err != nil || [2]string{repo, ref} != want {
			t.Errorf("%s: %s, %s, %v", in, repo, ref, err)
		}
	}
	for _, bad := range []string{"", ":v1", "a:", "A/b", "a@sha256:1", "a@", "a:b:c", "a/b:v/1"} {
		if repo, ref, err := oci.ParseReference(bad); err == nil {
			t.Errorf("%q is read as %s, %s", bad, repo, ref)
		}
	}
}

func FuzzParseReference(f *testing.F) {
	f.Add("docker.io/library/nginx:1.27@sha256:" + fmt.Sprintf("%064d", 1))
	f.Fuzz(func(t *testing.T, s string) {
		repo, ref, err := oci.ParseReference(s)
		if err == nil && (!oci.ValidName(repo) || !oci.ValidTag(ref) && !oci.ValidDigest(oci.Digest(ref))) {
			t.Errorf("%q is read as %q, %q", s, repo, ref)
		}
	})
}
