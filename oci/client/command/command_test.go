package command_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/oci/client"
	"example.org/slipway/oci/client/command"
	"example.org/slipway/oci/wire"
)

func wantCredential(t testing.TB, f client.CredentialFunc, host string, want client.Credential) {
	t.Helper()
	got, err := f(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", host, diff)
	}
}

// shell writes a program that runs body and appends a line to the file "runs" beside it.
// runs counts the lines.
func shell(t *testing.T, body string) (command []string, runs func() int) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "get")
	if err := os.WriteFile(file, []byte("echo >>"+dir+"/runs\n"+body+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"/bin/sh", file}, func() int {
		b, err := os.ReadFile(filepath.Join(dir, "runs"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return bytes.Count(b, []byte("\n"))
	}
}

func TestCredential(t *testing.T) {
	for name, tt := range map[string]struct {
		script, username string
		want             client.Credential
		say              string // text of the error
	}{
		"password":       {"echo secret", "AWS", client.Credential{Username: "AWS", Password: "secret"}, ""},
		"helper":         {`echo '{"ServerURL":"x","Username":"me","Secret":"secret"}'`, "", client.Credential{Username: "me", Password: "secret"}, ""},
		"identity token": {`echo '{"Username":"<token>","Secret":"secret"}'`, "", client.Credential{RefreshToken: "secret"}, ""},
		"host on stdin":  {"read host; echo $host", "AWS", client.Credential{Username: "AWS", Password: "registry.example.com"}, ""},
		"no user":        {"echo secret", "", client.Credential{}, "no user name"},
		"no secret":      {`echo '{"Username":"me"}'`, "", client.Credential{}, "Secret"},
		"nothing":        {"", "AWS", client.Credential{}, "nothing"},
		"lines":          {"echo secret; echo secret", "AWS", client.Credential{}, "more than one line"},
		"fails":          {"echo secret; echo out of luck >&2; exit 3", "AWS", client.Credential{}, "exit status 3: out of luck"},
		"hangs":          {"exec sleep 600", "AWS", client.Credential{}, "deadline exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := command.Options{Username: tt.username}
			if name == "hangs" {
				o.Timeout = 50 * time.Millisecond
			}
			o.Command, _ = shell(t, tt.script)
			f, err := command.Credential("registry.example.com", o)
			if err != nil {
				t.Fatal(err)
			}
			got, err := f(t.Context(), "registry.example.com")
			if tt.say != "" {
				if err == nil || !strings.Contains(err.Error(), tt.say) || strings.Contains(err.Error(), "secret") {
					t.Errorf("got %v, want an error that says %q", err, tt.say)
				}
			} else if err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if _, err := command.Credential("registry.example.com", command.Options{}); err == nil {
		t.Error("a command of nothing is taken")
	}
}

func TestCredentialIsKept(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var log bytes.Buffer
	file := filepath.Join(t.TempDir(), "password")
	set := func(s string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	argv, runs := shell(t, "cat "+file)
	f, err := command.Credential("registry.example.com", command.Options{
		Command: argv, Username: "AWS", Every: time.Hour, Clock: func() time.Time { return now }, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	is := func(password string, n int) {
		t.Helper()
		wantCredential(t, f, "registry.example.com", client.Credential{Username: "AWS", Password: password})
		if got := runs(); got != n {
			t.Fatalf("the command was run %d times, want %d", got, n)
		}
	}
	wantCredential(t, f, "cdn.example.com", client.Credential{})
	for n := range 2 { // a failure is remembered for a moment
		if _, err := f(t.Context(), "registry.example.com"); err == nil || runs() != 1 {
			t.Fatalf("ask %d: got %v after %d runs", n, err, runs())
		}
	}
	now = now.Add(10 * time.Second)
	set("one")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if cr, err := f(context.Background(), "registry.example.com"); err != nil || cr.Password != "one" {
				t.Errorf("got %q, %v", cr.Password, err)
			}
		})
	}
	wg.Wait()
	is("one", 2)
	set("two")
	is("one", 2)
	now = now.Add(time.Hour)
	is("two", 3)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Hour)
	is("two", 4) // it fails, but the old credential may still be valid
	is("two", 4)
	set("three")
	now = now.Add(time.Minute)
	is("three", 5)
	if s := log.String(); !strings.Contains(s, "credential command failed") || strings.Contains(s, "two") {
		t.Errorf("got log %q", s)
	}
	now = now.Add(time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if cr, err := f(ctx, "registry.example.com"); err != nil && !errors.Is(err, context.Canceled) || err == nil && cr.Password != "three" {
		t.Errorf("got %q, %v", cr.Password, err)
	}
	is("three", runs()+1) // a caller that left does no harm
}

// TestCredentialIsSlow checks a command that runs longer than its caller waits.
func TestCredentialIsSlow(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	argv, runs := shell(t, "while ! test -e "+gate+"; do sleep 0.02; done; echo secret")
	f, err := command.Credential("registry.example.com", command.Options{Command: argv, Username: "AWS"})
	if err != nil {
		t.Fatal(err)
	}
	guard, ctx := wire.NewStallGuard(t.Context(), 20*time.Millisecond, time.Minute)
	_, err = f(ctx, "registry.example.com")
	var none *http.Response
	guard.Answered(&none, &err)
	if err == nil || errors.Is(err, wire.ErrStalled) || !strings.Contains(err.Error(), "credential command /bin/sh for registry.example.com has not ended yet") {
		t.Errorf("got %v: that the registry is slow, or nothing", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f(ctx, "registry.example.com"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantCredential(t, f, "registry.example.com", client.Credential{Username: "AWS", Password: "secret"})
	if got := runs(); got != 1 {
		t.Errorf("the command was run %d times, want once", got)
	}
}
