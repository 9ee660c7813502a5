package wire

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseChallenges(t *testing.T) {
	none := map[string]string{}
	for in, want := range map[string][]Challenge{
		"":                         nil,
		"=":                        nil,
		`Basic realm="x"`:          {{"basic", map[string]string{"realm": "x"}}},
		"Negotiate":                {{"negotiate", none}},
		"Negotiate abc==":          {{"negotiate", none}},
		"Negotiate abc==, Basic":   {{"negotiate", none}, {"basic", none}},
		"Negotiate a/b==, Basic":   {{"negotiate", none}, {"basic", none}},
		"Negotiate basic/a, NTLM":  {{"negotiate", none}, {"ntlm", none}},
		`BEARER Realm = "a\"b,c" `: {{"bearer", map[string]string{"realm": `a"b,c`}}},
		`Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/app:pull,push"`: {
			{"bearer", map[string]string{"realm": "https://auth.docker.io/token", "service": "registry.docker.io", "scope": "repository:library/app:pull,push"}}},
		`Basic realm="x", Bearer realm=y`:          {{"basic", map[string]string{"realm": "x"}}, {"bearer", map[string]string{"realm": "y"}}},
		`Basic realm="Bearer realm=z", Bearer r=y`: {{"basic", map[string]string{"realm": "Bearer realm=z"}}, {"bearer", map[string]string{"r": "y"}}},
		`Bearer realm=https://a/t,service=s`:       {{"bearer", map[string]string{"realm": "https://a/t", "service": "s"}}},
		`Bearer realm="open`:                       {{"bearer", none}},
		`Bearer realm="open\`:                      {{"bearer", none}},
		`Bearer a=1,,b=2 ,`:                        {{"bearer", map[string]string{"a": "1", "b": "2"}}},
		`Bearer a=1 b=2`:                           {{"bearer", map[string]string{"a": "1", "b": "2"}}},
		`@#!?, Bearer a=1`:                         {{"bearer", map[string]string{"a": "1"}}},
	} {
		got := ParseChallenges([]string{in})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
}

// writer writes challenges in every spelling that RFC 9110 allows, and with the single quotes and
// semicolons that some servers use against it.
type writer struct{ *rand.Rand }

func (w writer) any(list ...string) string { return list[w.IntN(len(list))] }

func (w writer) token() string {
	return w.any("realm", "service", "scope", "error", "x", "Basic", "bearer", "a-b", "*", "t0")
}

// cased changes the case of some letters.
func (w writer) cased(s string) string {
	b := []byte(s)
	for i := range b {
		if w.IntN(2) == 0 {
			b[i] = strings.ToUpper(string(b[i]))[0]
		}
	}
	return string(b)
}

func (w writer) value() (value, written string) {
	if w.IntN(2) == 0 {
		v := w.token()
		return v, v
	}
	value = w.any("x", `a"b`, `a\b`, "a, Basic realm=b", "https://a.example/t?x=1&y=2", "repository:a/b:pull,push registry:catalog:*", " ", "ü")
	if w.IntN(8) == 0 {
		return value, "'" + value + "'"
	}
	var b strings.Builder
	for i := range len(value) {
		if value[i] == '"' || value[i] == '\\' || w.IntN(8) == 0 && value[i] < 0x80 {
			b.WriteByte('\\')
		}
		b.WriteByte(value[i])
	}
	return value, `"` + b.String() + `"`
}

// challenge returns a challenge and its written form.
func (w writer) challenge() (Challenge, string) {
	c := Challenge{Scheme: w.any("basic", "bearer", "negotiate", "digest", "x-1"), Params: map[string]string{}}
	text := w.cased(c.Scheme)
	if w.IntN(4) == 0 {
		return c, text + w.any("", " a68==", " Basic/+~", "  t")
	}
	text += w.any(" ", "  ")
	for i := range 1 + w.IntN(4) {
		if i > 0 {
			text += w.any(",", ", ", " ,\t", ",,", ";", "; ")
		}
		name := fmt.Sprintf("%s%d", w.token(), i)
		value, written := w.value()
		c.Params[strings.ToLower(name)] = value
		text += w.cased(name) + w.any("=", " = ", "=\t") + written
	}
	return c, text
}

// TestParseChallengesReadsTheGrammar checks that every written challenge is read back,
// whatever the order, the spelling and the number of headers.
func TestParseChallengesReadsTheGrammar(t *testing.T) {
	if testing.Short() {
		t.Skip("heavy, and not about what happens at once")
	}
	for seed := range uint64(20_000) {
		w := writer{rand.New(rand.NewPCG(seed, 1))}
		var want []Challenge
		var lines []string
		line := ""
		for range 1 + w.IntN(4) {
			c, text := w.challenge()
			want = append(want, c)
			switch {
			case line == "":
				line = text
			case w.IntN(2) == 0:
				line += w.any(",", ", ", " , ", ", ,") + text
			default:
				lines, line = append(lines, line), text
			}
		}
		lines = append(lines, line)
		if diff := cmp.Diff(want, ParseChallenges(lines)); diff != "" {
			t.Fatalf("seed %d, %q (-want +got):\n%s", seed, lines, diff)
		}
	}
}

func FuzzChallenges(f *testing.F) {
	f.Add(`Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/app:pull"`)
	f.Add(`Basic realm="x", Bearer realm=y, Negotiate abc==`)
	f.Add(`a="\`)
	f.Fuzz(func(t *testing.T, s string) {
		from := &url.URL{Scheme: "https", Host: "registry.example.com", Path: "/v2/"}
		list := ParseChallenges([]string{s, s})
		for _, c := range list {
			if c.Scheme == "" || strings.ToLower(c.Scheme) != c.Scheme || c.Params == nil {
				t.Errorf("%q: got %+v", s, c)
			}
		}
		c := ChooseChallenge([]string{s, s}, from)
		if c.Scheme == "" {
			return
		}
		best := c.Header()
		if again := ParseChallenges([]string{best}); len(again) != 1 || strings.Contains(best, "\n") {
			t.Errorf("%q: the choice %q is read as %+v", s, best, again)
		}
	})
}

func TestChooseChallenge(t *testing.T) {
	const plain, secure = "http://r.example/v2/a/tags/list", "https://r.example/v2/a/tags/list"
	const bearer = `Bearer realm="https://a.example/t",service="s"`
	for _, tt := range []struct {
		name, from string
		headers    []string
		want       string
	}{
		{"basic first", secure, []string{`Basic realm="b", ` + bearer}, bearer},
		{"bearer first", secure, []string{bearer + `, Basic realm="b"`}, bearer},
		{"two headers", secure, []string{`Basic realm="b"`, bearer}, bearer},
		{"unknown ones first", secure, []string{"Negotiate", `Digest realm="x",nonce="y"`, "NTLM a68==", bearer}, bearer},
		{"capitals, no quotes", secure, []string{`BEARER REALM=https://a.example/t,Service=s`}, bearer},
		{"basic alone", secure, []string{`bAsIc Realm="a\"b"`}, `Basic realm="a\"b"`},
		{"basic without a realm", secure, []string{`basic`}, `Basic realm=""`},
		{"none known", secure, []string{"Negotiate"}, ""},
		{"none", secure, nil, ""},
		{"relative realm", plain, []string{`Bearer realm="/t?x=1",scope="a b"`}, `Bearer realm="http://r.example/t?x=1",scope="a b"`},
		{"realm of another scheme", plain, []string{`Bearer realm="ftp://a.example/t"`, "Basic"}, `Basic realm=""`},
		{"realm that gives up TLS", secure, []string{`Bearer realm="http://a.example/t", Basic realm="b"`}, `Basic realm="b"`},
		{"only a realm that gives up TLS", secure, []string{`Bearer realm="http://a.example/t"`}, `Bearer realm="http://a.example/t"`},
		{"bearer without a realm", secure, []string{`Bearer service="s", Basic realm="b"`}, `Basic realm="b"`},
		{"bearer without a realm alone", secure, []string{`Bearer service="s"`}, ""},
		{"realm that is no URL", secure, []string{`Bearer realm="https://[", Basic realm="b"`}, `Basic realm="b"`},
		{"second bearer is of use", secure, []string{`Bearer error="x", ` + bearer}, bearer},
	} {
		t.Run(tt.name, func(t *testing.T) {
			from, err := url.Parse(tt.from)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if c := ChooseChallenge(tt.headers, from); c.Scheme != "" {
				got = c.Header()
			}
			if got != tt.want {
				t.Errorf("%q: got %s, want %s", tt.headers, got, tt.want)
			}
		})
	}
}
