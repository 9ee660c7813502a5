package serve_test

import (
	"math/rand/v2"
	"net/http"
	"testing"
)

// TestQuotaOfEveryDoor stores bytes in each way in which clients can, and checks that what
// came in by one way leaves less room for all others.
func TestQuotaOfEveryDoor(t *testing.T) {
	t.Parallel()
	doors := map[string]func(s *instance, content string) answer{
		"a file": func(s *instance, content string) answer {
			return s.do("PUT", "/v2/team/app/_slipway/gear/files/"+digestOf(content), content)
		},
		"a blob": func(s *instance, content string) answer {
			return s.do("POST", "/v2/team/app/blobs/uploads/?digest="+digestOf(content), content, header("Content-Type", "application/octet-stream"))
		},
		"a manifest": func(s *instance, content string) answer {
			m := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[],"annotations":{"a":"` + content + `"}}`
			return s.do("PUT", "/v2/team/app/manifests/"+digestOf(m), m, header("Content-Type", "application/vnd.oci.image.index.v1+json"))
		},
	}
	rng := rand.New(rand.NewPCG(1, 2))
	random := func() string {
		b := make([]byte, 60<<10)
		for i := range b {
			b[i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[rng.IntN(64)]
		}
		return string(b)
	}
	for first, store := range doors {
		s := start(t, setup{yaml: "storage: {quotas: [{repositories: ['team/**'], bytes: 100KiB}]}"})
		if a := store(s, random()); a.status != http.StatusCreated {
			t.Fatalf("%s within the quota: %d %s", first, a.status, a.body)
		}
		for then, store := range doors {
			if a := store(s, random()); a.status != http.StatusForbidden {
				t.Errorf("%s after %s: %d %s, want it refused", then, first, a.status, a.body)
			}
		}
	}
}
