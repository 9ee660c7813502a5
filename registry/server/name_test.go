package server_test

import (
	"net/http"
	"strings"
	"testing"

	"example.org/slipway/internal/logtest"
	"example.org/slipway/oci"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/server"
	"example.org/slipway/workload/trace"
)

// otherNames maps ?ns=pub and the names below also/ to public/, and a to alice/app. Every other ns
// leads nowhere.
func otherNames(r *http.Request, name string) (string, error) {
	switch ns := r.URL.Query().Get("ns"); {
	case ns == "pub":
		return "public/" + name, nil
	case ns == "long":
		return strings.Repeat("x", 200) + "/" + name, nil
	case ns != "":
		return name, &oci.Error{Code: oci.CodeNameUnknown, Message: "no upstream is called so"}
	case name == "a":
		return "alice/app", nil
	}
	if rest, ok := strings.CutPrefix(name, "also/"); ok {
		return "public/" + rest, nil
	}
	return name, nil
}

func TestOtherNames(t *testing.T) {
	off := false
	buf := &logtest.Buffer{}
	log := trace.NewWriter(buf, trace.FormatCLF)
	b := newBed(t, setup{server: server.Options{
		Auth: newAuth(t, auth.Config{Token: &auth.TokenConfig{Builtin: &off}}), Repository: otherNames, AccessLog: log, Prefix: "/base",
	}})
	d, raw := b.pushImage("public/app", 1, "v1", "v2")
	b.pushImage("alice/app", 2, "v1")
	b.pushImage("also/app", 3, "v3") // hidden by the other name
	challenge := map[string]string{"Www-Authenticate": `Basic realm="test"`}
	b.run(t, []exchange{
		{name: "by its name", method: "GET", target: "/base/v2/public/app/manifests/v1", status: 200, wantBody: string(raw)},
		{name: "by another name", method: "GET", target: "/base/v2/also/app/manifests/v1", status: 200, wantBody: string(raw)},
		{name: "by ns", method: "GET", target: "/base/v2/app/manifests/" + string(d) + "?ns=pub", status: 200, wantBody: string(raw)},
		{name: "head by ns", method: "HEAD", target: "/base/v2/app/manifests/v1?ns=pub", status: 200, want: map[string]string{"Docker-Content-Digest": string(d)}},
		{name: "nothing by the hidden name", method: "GET", target: "/base/v2/also/app/manifests/v3", status: 404, code: oci.CodeManifestUnknown},
		{name: "a mapping of nobody", method: "GET", target: "/base/v2/app/manifests/v1?ns=elsewhere", status: 404, code: oci.CodeNameUnknown},
		{name: "a name that becomes too long", method: "GET", target: "/base/v2/" + strings.Repeat("y", 100) + "/manifests/v1?ns=long", status: 400, code: oci.CodeNameInvalid},
		{name: "the rights of the meant name count", method: "GET", target: "/base/v2/a/manifests/v1", status: 401, code: oci.CodeUnauthorized, want: challenge},
		{name: "with them", method: "GET", target: "/base/v2/a/manifests/v1", headers: []string{basic("alice")}, status: 200},
		{name: "of others", method: "GET", target: "/base/v2/a/manifests/v1", headers: []string{basic("bob")}, status: 403, code: oci.CodeDenied},
		{name: "tags", method: "GET", target: "/base/v2/app/tags/list?ns=pub&n=1", status: 200, wantBody: `{"name":"app","tags":["v1"]}`,
			want: map[string]string{"Link": `</base/v2/app/tags/list?last=v1&n=1&ns=pub>; rel="next"`}},
		{name: "more tags", method: "GET", target: "/base/v2/app/tags/list?last=v1&n=1&ns=pub", status: 200, wantBody: `{"name":"app","tags":["v2"]}`},
		{name: "tags by another name", method: "GET", target: "/base/v2/also/app/tags/list?n=1", status: 200,
			want: map[string]string{"Link": `</base/v2/also/app/tags/list?last=v1&n=1>; rel="next"`}},
	})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(buf.String(), "\n")
	for i, want := range []string{
		"GET /base/v2/public/app/manifests/v1 ", "GET /base/v2/public/app/manifests/v1 ",
		"GET /base/v2/public/app/manifests/" + string(d) + "?ns=pub ", "HEAD /base/v2/public/app/manifests/v1?ns=pub ",
	} {
		if i >= len(lines) || !strings.Contains(lines[i], `"`+want) {
			t.Errorf("line %d of the access log does not name what was meant, %q:\n%s", i, want, buf)
		}
	}
}
