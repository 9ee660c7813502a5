package directory

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-ldap/ldap/v3"

	"example.org/slipway/integration/internal/slipway"
)

const (
	people = "ou=people,dc=example,dc=org"
	groups = "ou=groups,dc=example,dc=org"

	servicePassword = "service-secret"
	alicePassword   = "alice-secret"
)

// staff returns a directory's entries: alice is in dev, bob is in none of the groups below
// ou=groups, and both are in a group elsewhere that is called ops.
func staff() []entry {
	user := func(name, password string, memberOf ...string) entry {
		return entry{"uid=" + ldap.EscapeDN(name) + "," + people, password, map[string][]string{
			"uid": {name}, "objectClass": {"person"}, "memberOf": append(memberOf, "cn=ops,ou=elsewhere,dc=example,dc=org")}}
	}
	return []entry{
		{"cn=slipway,dc=example,dc=org", servicePassword, nil},
		user("alice", alicePassword, "cn=dev,"+groups),
		user("bob", "bob-secret"),
		user("Smith, J. (Jr)", "smith-secret"),
		{"cn=dev," + groups, "", map[string][]string{"cn": {"dev"}, "member": {"uid=alice," + people}}},
		{"cn=ops," + groups, "", map[string][]string{"cn": {"ops"}, "member": {"cn=nobody"}}},
		{"cn=ops,ou=elsewhere,dc=example,dc=org", "", map[string][]string{"cn": {"ops"}, "member": {"uid=bob," + people, "uid=alice," + people}}},
	}
}

// serve starts a registry with auth.ldap.
func serve(t *testing.T, keys string) *slipway.Server {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	return slipway.Start(t, root, &slipway.Options{Config: fmt.Sprintf(`version: 0.1
storage: {filesystem: {rootdirectory: %q}}
auth:
  max_failures_per_minute: 50
  ldap:
%s
  access:
    - {repositories: ["team/**"], subjects: ["group:ldap:dev"], actions: [pull, push]}
    - {repositories: ["ops/**"], subjects: ["group:ops"], actions: [pull]}
    - {repositories: ["bob/**"], subjects: ["ldap:bob"], actions: [pull]}
    - {repositories: ["all/**"], subjects: ["*"], actions: [pull]}
    - {repositories: ["public/**"], subjects: [anonymous], actions: [pull]}
`, root, keys)})
}

// lines writes keys of auth.ldap.
func lines(keys ...string) string { return "    " + strings.Join(keys, "\n    ") }

// service writes the keys of the entry that searches, with its password in a file.
func service(t *testing.T, password string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return "bind_dn: cn=slipway,dc=example,dc=org\n    bind_password_file: " + file
}

// pull asks for the tags of a repository, and returns the status. A repository that the user may
// pull, and that does not exist, is 404.
func pull(t *testing.T, s *slipway.Server, repo, user, password string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+s.Addr+"/v2/"+repo+"/tags/list", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth(user, password)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// TestLogin logs users in over each kind of connection and each way to find users and groups.
func TestLogin(t *testing.T) {
	search := "user_base: " + people + "\n    user_filter: \"(&(objectClass=person)(uid={user}))\""
	for name, c := range map[string]struct {
		ldaps, service bool
		keys           []string
	}{
		"ldaps, searches":            {true, true, []string{"url: ldaps://ADDR", "ca: CA", search, "group_base: " + groups}},
		"StartTLS, memberOf":         {false, true, []string{"url: ldap://ADDR", "start_tls: true", "ca: CA", search, "group_base: " + groups, "member_of: memberOf"}},
		"anonymous search":           {false, false, []string{"url: ldap://ADDR", search, "group_base: " + groups}},
		"entry by its name":          {false, false, []string{"url: ldap://ADDR", "user_dn: uid={user}," + people, "group_base: " + groups}},
		"entry by its name,memberOf": {true, false, []string{"url: ldaps://ADDR", "ca: CA", "user_dn: uid={user}," + people, "group_base: " + groups, "member_of: memberOf"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDirectory(t, c.ldaps, staff()...)
			keys := lines(c.keys...)
			if c.service {
				d.searcher = "cn=slipway,dc=example,dc=org"
				keys += "\n    " + service(t, servicePassword)
			}
			s := serve(t, strings.NewReplacer("ADDR", d.addr, "CA", d.ca).Replace(keys))
			for _, c := range []struct {
				user, password, repo string
				want                 int
			}{
				{"alice", alicePassword, "team/a", 404},
				{"ALICE", alicePassword, "team/a", 404},
				{"alice", alicePassword, "ops/a", 403}, // the group is not below group_base
				{"alice", alicePassword, "bob/a", 403},
				{"bob", "bob-secret", "bob/a", 404},
				{"BOB", "bob-secret", "bob/a", 404},
				{"bob", "bob-secret", "team/a", 403},
				{"Smith, J. (Jr)", "smith-secret", "all/a", 404},
				{"alice", "bob-secret", "all/a", 401},
				{"alice", "", "all/a", 401},
				{"mallory", "x", "all/a", 401},
				{"*", alicePassword, "all/a", 401},
				{"alice)(uid=*", alicePassword, "all/a", 401},
				{" alice", alicePassword, "all/a", 401},
				{"alice," + people, alicePassword, "all/a", 401},
				{"slipway", servicePassword, "all/a", 401},
			} {
				if got := pull(t, s, c.repo, c.user, c.password); got != c.want {
					t.Errorf("%q pulls %s: got %d, want %d", c.user, c.repo, got, c.want)
				}
			}
			if log := s.Process.Log(1 << 20); strings.Contains(log, "-secret") {
				t.Errorf("the log has a password:\n%s", log)
			}
			before := d.asked()
			for range 5 {
				pull(t, s, "team/a", "alice", alicePassword)
			}
			if after := d.asked(); after != before {
				t.Errorf("a password that was verified: the directory was asked %d times more", after-before)
			}
		})
	}
}

// TestAway stops the directory under the server: who is remembered stays, and all others are told
// to try again, not that the password is wrong. It starts with the directory away.
func TestAway(t *testing.T) {
	t.Parallel()
	d := newDirectory(t, true, staff()...)
	d.stop()
	s := serve(t, lines("url: ldaps://"+d.addr, "ca: "+d.ca, "user_base: "+people))
	if got := pull(t, s, "all/a", "alice", alicePassword); got != 503 {
		t.Errorf("the directory was never up: got %d, want 503", got)
	}
	if got := pull(t, s, "public/a", "", ""); got != 404 {
		t.Errorf("an anonymous client: got %d, want 404", got)
	}
	d.start()
	if got := pull(t, s, "all/a", "alice", alicePassword); got != 404 {
		t.Errorf("the directory is up: got %d, want 404", got)
	}
	d.stop()
	for _, c := range []struct {
		user, password string
		want           int
	}{{"alice", alicePassword, 404}, {"alice", "wrong", 503}, {"bob", "bob-secret", 503}} {
		for range 3 {
			if got := pull(t, s, "all/a", c.user, c.password); got != c.want {
				t.Errorf("the directory is away: %s gets %d, want %d", c.user, got, c.want)
			}
		}
	}
	log := s.Process.Log(1 << 20)
	if n := strings.Count(log, "the LDAP directory cannot be asked"); n != 2 {
		t.Errorf("the log says %d times that the directory is away, want 2:\n%s", n, log)
	}
	if !strings.Contains(log, "ldaps://"+d.addr) || !strings.Contains(log, "check auth.ldap.url") {
		t.Errorf("the log does not say which server, or what to do:\n%s", log)
	}
	resp, err := http.Get("http://" + s.DebugAddr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`slipway_auth_ldap_logins_total{outcome="success"} 1`, `slipway_auth_ldap_logins_total{outcome="unavailable"} 7`, "slipway_auth_ldap_seconds_count 8"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// TestTrouble checks that whatever is wrong between the server and the directory, a right password
// is answered with 503, in time, and the log says what to do.
func TestTrouble(t *testing.T) {
	hang, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hang.Close() })
	for name, c := range map[string]struct {
		ldaps   bool
		keys    []string
		service string // its password; empty: none
		advice  string
	}{
		"unknown authority":    {true, []string{"url: ldaps://ADDR", "user_base: " + people}, "", "auth.ldap.ca"},
		"unknown, StartTLS":    {false, []string{"url: ldap://ADDR", "start_tls: true", "user_base: " + people}, "", "auth.ldap.ca"},
		"wrong service":        {true, []string{"url: ldaps://ADDR", "ca: CA", "user_base: " + people}, "wrong", "auth.ldap.bind_password_file"},
		"may not search":       {true, []string{"url: ldaps://ADDR", "ca: CA", "user_base: " + people}, "", "auth.ldap.user_base"},
		"no TLS there":         {false, []string{"url: ldaps://ADDR", "ca: CA", "user_base: " + people, "timeout: 1s"}, "", "auth.ldap.ca"},
		"no answer":            {false, []string{"url: ldap://" + hang.Addr().String(), "user_base: " + people, "timeout: 1s"}, "", "no answer within 1s"},
		"no answer, StartTLS":  {false, []string{"url: ldap://" + hang.Addr().String(), "start_tls: true", "ca: CA", "user_base: " + people, "timeout: 1s"}, "", "auth.ldap.start_tls"},
		"no answer, encrypted": {true, []string{"url: ldaps://" + hang.Addr().String(), "ca: CA", "user_base: " + people, "timeout: 1s"}, "", "auth.ldap.ca"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDirectory(t, c.ldaps, staff()...)
			d.searcher = "cn=slipway,dc=example,dc=org"
			keys := lines(c.keys...)
			if c.service != "" {
				keys += "\n    " + service(t, c.service)
			}
			s := serve(t, strings.NewReplacer("ADDR", d.addr, "CA", d.ca).Replace(keys))
			began := time.Now()
			if got := pull(t, s, "all/a", "alice", alicePassword); got != 503 {
				t.Errorf("got %d, want 503", got)
			}
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("the answer took %v", took)
			}
			if log := s.Process.Log(1 << 20); !strings.Contains(log, c.advice) || strings.Contains(log, "-secret") {
				t.Errorf("the log does not name %s, or has a password:\n%s", c.advice, log)
			}
		})
	}
}

// TestGuesses checks that an address that guesses passwords is answered 429, and the directory is
// not asked any more.
func TestGuesses(t *testing.T) {
	t.Parallel()
	d := newDirectory(t, true, staff()...)
	s := serve(t, lines("url: ldaps://"+d.addr, "ca: "+d.ca, "user_base: "+people))
	for i := range 50 {
		if got := pull(t, s, "all/a", "alice", fmt.Sprint("guess", i)); got != 401 {
			t.Fatalf("guess %d: got %d, want 401", i, got)
		}
	}
	before := d.asked()
	if got := pull(t, s, "all/a", "alice", alicePassword); got != 429 {
		t.Errorf("after 50 guesses: got %d, want 429", got)
	}
	if after := d.asked(); after != before {
		t.Errorf("after 50 guesses, the directory was asked %d times more", after-before)
	}
}

// TestToken gets a token of the built-in service, as docker does, and uses it for what the user's
// groups may do.
func TestToken(t *testing.T) {
	t.Parallel()
	d := newDirectory(t, true, staff()...)
	s := serve(t, lines("url: ldaps://"+d.addr, "ca: "+d.ca, "user_base: "+people, "group_base: "+groups))
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+s.Addr+"/token?service=slipway&scope="+url.QueryEscape("repository:team/a:pull,push repository:bob/a:pull"), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("alice", alicePassword)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var token struct{ Token string }
	if err := json.NewDecoder(resp.Body).Decode(&token); err != nil || token.Token == "" {
		t.Fatalf("token: %d, %v", resp.StatusCode, err)
	}
	d.stop() // a token needs no directory
	for repo, want := range map[string]int{"team/a": 202, "bob/a": 403} {
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+s.Addr+"/v2/"+repo+"/blobs/uploads/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token.Token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("push to %s with the token: got %d, want %d", repo, resp.StatusCode, want)
		}
	}
}
