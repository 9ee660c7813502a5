package send

import (
	"net/http"
	"testing"
)

// TestClientsAreTold checks that the registry, and no other server, learns which client
// sent a request, and that two clients are distinct.
func TestClientsAreTold(t *testing.T) {
	good := blobBytes(t)
	var told, elsewhere []string
	object := serve(t, func(w http.ResponseWriter, r *http.Request) {
		elsewhere = append(elsewhere, r.Header.Get("X-Forwarded-For"))
		_, _ = w.Write(good)
	})
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		told = append(told, r.Header.Get("X-Forwarded-For"))
		http.Redirect(w, r, object, http.StatusTemporaryRedirect)
	})
	for _, client := range []uint64{0x01_020304, 0x01_020304, 0x050607} {
		task := getBlob(0)
		task.Client = client
		do(t, Target{Name: "t", URL: url}, Options{Clients: true}, task)
	}
	do(t, Target{Name: "t", URL: url}, Options{}, getBlob(0))
	if len(told) != 4 || told[0] != "10.2.3.5" || told[1] != told[0] || told[2] != "10.5.6.7" || told[3] != "" {
		t.Errorf("the registry was told %q, want 10.2.3.5 twice, 10.5.6.7 and nothing", told)
	}
	for _, s := range elsewhere {
		if s != "" {
			t.Errorf("where the redirect leads was told of client %s", s)
		}
	}
}
