package command

import (
	"testing"

	"example.org/slipway/oci/client"
)

func FuzzCredential(f *testing.F) {
	f.Add([]byte(`{"ServerURL":"x","Username":"me","Secret":"secret"}`), "")
	f.Add([]byte("secret\n"), "AWS")
	f.Fuzz(func(t *testing.T, b []byte, username string) {
		cr, err := parseCredential(b, username)
		if err == nil && (cr.Username == "" || cr.Password == "") && cr.RefreshToken == "" {
			t.Errorf("%q: got a credential of nothing", b)
		}
		if err != nil && cr != (client.Credential{}) {
			t.Errorf("%q: got a credential and %v", b, err)
		}
	})
}
