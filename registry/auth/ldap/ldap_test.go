package ldap

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	client "github.com/go-ldap/ldap/v3"
)

// TestCheck checks that a mistake is found at the start, under its key, and that a usable
// configuration is taken although no server is there.
func TestCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret, empty := file("secret", "SECRET\n"), file("empty", "\n")
	const base = "ou=people,dc=example,dc=org"
	for name, c := range map[string]struct {
		cfg      Config
		key, err string
	}{
		"least":          {Config{URL: "ldaps://ldap.test", UserBase: base}, "", ""},
		"StartTLS":       {Config{URL: "ldap://ldap.test:1389/", StartTLS: true, UserDN: "uid={user}," + base}, "", ""},
		"loopback":       {Config{URL: "ldap://127.0.0.1", UserBase: base}, "", ""},
		"loopback, name": {Config{URL: "ldap://localhost:3890", UserBase: base}, "", ""},
		"permitted":      {Config{URL: "ldap://ldap.test", InsecurePlaintext: true, UserBase: base}, "", ""},
		"all":            {Config{URL: "ldaps://ldap.test", BindDN: "cn=x", BindPasswordFile: secret, UserBase: base, UserFilter: "(|(uid={user})(mail={user}))", GroupBase: base, GroupFilter: "(memberUid={user})"}, "", ""},
		"plaintext":      {Config{URL: "ldap://ldap.test", UserBase: base}, "url", "in clear"},
		"like loopback":  {Config{URL: "ldap://localhost.example.com", UserBase: base}, "url", "in clear"},
		"scheme":         {Config{URL: "https://ldap.test", UserBase: base}, "url", "ldaps://host"},
		"no scheme":      {Config{URL: "ldap.test:636", UserBase: base}, "url", "ldaps://host"},
		"credentials":    {Config{URL: "ldaps://cn=x:SECRET@ldap.test", UserBase: base}, "url", "more than the server"},
		"bad URL":        {Config{URL: "ldaps://x:SECRET@ldap.test:port", UserBase: base}, "url", "ldaps://host"},
		"search in URL":  {Config{URL: "ldaps://ldap.test/dc=example?uid", UserBase: base}, "url", "more than the server"},
		"TLS twice":      {Config{URL: "ldaps://ldap.test", StartTLS: true, UserBase: base}, "start_tls", "ldap://"},
		"useless CA":     {Config{URL: "ldap://localhost", CA: secret, UserBase: base}, "ca", "of no use"},
		"no such CA":     {Config{URL: "ldaps://ldap.test", CA: dir + "/none", UserBase: base}, "ca", "none"},
		"CA of nothing":  {Config{URL: "ldaps://ldap.test", CA: secret, UserBase: base}, "ca", "secret"},
		"no users":       {Config{URL: "ldaps://ldap.test"}, "user_base", "is missing"},
		"both":           {Config{URL: "ldaps://ldap.test", UserBase: base, UserDN: "uid={user}"}, "user_dn", "excludes"},
		"same entry":     {Config{URL: "ldaps://ldap.test", UserDN: "uid=x"}, "user_dn", "{user}"},
		"same found":     {Config{URL: "ldaps://ldap.test", UserBase: base, UserFilter: "(uid=x)"}, "user_filter", "{user}"},
		"bad filter":     {Config{URL: "ldaps://ldap.test", UserBase: base, UserFilter: "(&(uid={user})"}, "user_filter", "not a filter"},
		"bad base":       {Config{URL: "ldaps://ldap.test", UserBase: "people"}, "user_base", "distinguished name"},
		"bad entry":      {Config{URL: "ldaps://ldap.test", UserDN: "{user}"}, "user_dn", "distinguished name"},
		"no password":    {Config{URL: "ldaps://ldap.test", UserBase: base, BindDN: "cn=x"}, "bind_dn", "need each other"},
		"empty password": {Config{URL: "ldaps://ldap.test", UserBase: base, BindDN: "cn=x", BindPasswordFile: empty}, "bind_password_file", "empty"},
		"lost password":  {Config{URL: "ldaps://ldap.test", UserBase: base, BindDN: "cn=x", BindPasswordFile: dir + "/none"}, "bind_password_file", "none"},
		"groups nowhere": {Config{URL: "ldaps://ldap.test", UserBase: base, MemberOf: "memberOf"}, "group_base", "is missing"},
		"groups twice":   {Config{URL: "ldaps://ldap.test", UserBase: base, GroupBase: base, GroupFilter: "(member={dn})", MemberOf: "memberOf"}, "member_of", "excludes"},
		"same groups":    {Config{URL: "ldaps://ldap.test", UserBase: base, GroupBase: base, GroupFilter: "(cn=x)"}, "group_filter", "{dn}"},
		"timeout":        {Config{URL: "ldaps://ldap.test", UserBase: base, Timeout: -1}, "timeout", "negative"},
	} {
		_, err := New(c.cfg, Options{})
		if c.key == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var m *Mistake
		if !errors.As(err, &m) || m.Key != c.key || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: got %v, want an error for %s with %q and no secret", name, err, c.key, c.err)
		}
	}
}

// checkEscapes checks that a name, whatever it has, is one value of a filter and of a DN, and
// changes nothing else of them.
func checkEscapes(t *testing.T, name string) {
	t.Helper()
	if !plain(name) {
		return
	}
	const dn = "cn={user}(x)*,dc=test"
	f, err := client.CompileFilter(fill("(&(uid={user})(member={dn}))", name, dn))
	if err != nil {
		t.Fatalf("%q: the filter is broken: %v", name, err)
	}
	if f.Tag != client.FilterAnd || len(f.Children) != 2 {
		t.Fatalf("%q: the filter has another form", name)
	}
	for i, want := range []string{name, dn} {
		c := f.Children[i]
		if c.Tag != client.FilterEqualityMatch || c.Children[1].Data.String() != want {
			t.Errorf("%q: condition %d is for %q, want %q", name, i, c.Children[1].Data.Bytes(), want)
		}
	}
	cfg := Config{UserDN: "uid={user},ou=people,dc=test"}
	parsed, err := client.ParseDN(cfg.userDN(name))
	if err != nil {
		t.Fatalf("%q: the DN %q is broken: %v", name, cfg.userDN(name), err)
	}
	if len(parsed.RDNs) != 3 || len(parsed.RDNs[0].Attributes) != 1 || parsed.RDNs[0].Attributes[0].Value != name {
		t.Errorf("%q: the DN %q has other parts", name, cfg.userDN(name))
	}
}

func TestEscapes(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	letters := []string{"a", "B", "*", "(", ")", "\\", ",", "+", "=", "\"", "<", ">", ";", "#", "/", " ", "é", "{user}", "{dn}", "\\2a", "&", "|", "!"}
	for range 20_000 {
		var b strings.Builder
		for range 1 + rnd.IntN(6) {
			b.WriteString(letters[rnd.IntN(len(letters))])
		}
		checkEscapes(t, b.String())
	}
}

func FuzzEscapes(f *testing.F) {
	f.Add("alice)(uid=*")
	f.Add("#a\\2c ,b")
	f.Fuzz(checkEscapes)
}

// TestPlain checks that no name passes that a directory could take for another one.
func TestPlain(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"alice": true, "Smith, J. (Jr)": true, "é": true, "": false, " alice": false, "alice ": false, "a  b": false,
		"a\x00b": false, "a\nb": false, "a\u00a0b": false, "a\u200bb": false, "\xff": false, strings.Repeat("x", maxName+1): false} {
		if plain(name) != want {
			t.Errorf("%q: got %t", name, !want)
		}
	}
}
