package passwords

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"example.org/slipway/oci"
)

const testHash = "$2y$04$" + "abcdefghijklmnopqrstuOABCDEFGHIJKLMNOPQRSTUVWXYZ01234"

func TestParse(t *testing.T) {
	secret := "$apr1$SECRETSALT$SECRETHASH"
	for _, c := range []struct{ name, file, err string }{
		{"good", "# comment\n\nalice:" + testHash + "\r\n bob:" + testHash + " \n", ""},
		{"byte order mark", "\ufeffalice:" + testHash + "\nbob:" + testHash + "\n", ""},
		{"empty", "", ""},
		{"apr1", "alice:" + testHash + "\nbob:" + secret, `line 2: user "bob": the password is not hashed with bcrypt`},
		{"sha", "bob:{SHA}SECRETHASH", `line 1: user "bob": the password is not hashed with bcrypt`},
		{"plain", "bob:SECRETHASH", `line 1: user "bob": the password is not hashed with bcrypt`},
		{"old bcrypt bug", "bob:$2x$" + testHash[4:], "not hashed with bcrypt"},
		{"short", "bob:" + testHash[:59], "damaged"},
		{"bad letter", "bob:" + testHash[:30] + "!" + testHash[31:], "damaged"},
		{"cost too high", "bob:$2y$31" + testHash[6:], "cost is not between"},
		{"twice", "bob:" + testHash + "\nbob:" + testHash, `line 2: user "bob" is there twice`},
		{"no colon", secret, "line 1: not of the form"},
		{"no user", ":" + secret, "line 1: not of the form"},
		{"hash first", secret + ":bob", "line 1: not of the form"},
		{"long line", "bob:" + strings.Repeat("x", 1<<17), "token too long"},
	} {
		users, err := parse(strings.NewReader(c.file))
		if c.err == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			for _, name := range []string{"alice", "bob"} {
				if want := strings.Contains(c.file, name); (users[name] != nil) != want {
					t.Errorf("%s: user %s is there: %t, want %t", c.name, name, !want, want)
				}
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.err) || users != nil {
			t.Errorf("%s: got %v, %v; want an error with %q", c.name, users, err, c.err)
			continue
		}
		if strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), testHash[7:30]) {
			t.Errorf("%s: the error shows the hash: %v", c.name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("alice:" + testHash + "\n#x\nbob:{SHA}x")
	f.Fuzz(func(t *testing.T, s string) {
		users, err := parse(strings.NewReader(s))
		if err != nil {
			return
		}
		for name, hash := range users {
			if _, err := bcrypt.Cost(hash); err != nil || name == "" || strings.Contains(name, ":") {
				t.Errorf("accepted user %q with hash %q: %v", name, hash, err)
			}
		}
	})
}

// TestDecoyCosts checks that an unknown user's password is compared with a hash that costs as much
// as those of known users.
func TestDecoyCosts(t *testing.T) {
	h := &Logins{}
	f := &userFile{costs: []int{5, 5, 5, 12}}
	seen := map[int]int{}
	for i := range 400 {
		name := "user" + strings.Repeat("x", i)
		hash := h.decoy(f, name)
		if err := checkBcrypt(string(hash)); err != nil {
			t.Fatalf("decoy %q: %v", hash, err)
		}
		if string(hash) != string(h.decoy(f, name)) {
			t.Fatal("two decoys for one name differ")
		}
		cost, err := bcrypt.Cost(hash)
		if err != nil {
			t.Fatal(err)
		}
		seen[cost]++
	}
	if seen[5]+seen[12] != 400 || seen[12] < 40 || seen[12] > 180 {
		t.Errorf("costs of decoys: got %v, want about 300 of 5 and 100 of 12", seen)
	}
	if cost, err := bcrypt.Cost(h.decoy(&userFile{}, "x")); err != nil || cost != bcrypt.DefaultCost {
		t.Errorf("decoy of an empty file: cost %d, %v", cost, err)
	}
}

func TestLoginsQueueIsBounded(t *testing.T) {
	h := &Logins{slots: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	if err := h.acquire(ctx); err != nil {
		t.Fatal(err)
	}
	// The slot is taken. One more request waits until the slot is free.
	done := make(chan error)
	go func() { done <- h.acquire(ctx) }()
	for deadline := time.Now().Add(5 * time.Second); h.waiting.Load() != 1; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("nobody waits")
		}
	}
	h.waiting.Add(queue - 1) // as many as allowed
	err := h.acquire(ctx)
	var retry *RetryError
	if !oci.HasCode(err, oci.CodeTooManyRequests) || !errors.As(err, &retry) || retry.After != time.Second {
		t.Errorf("one too many: %v", err)
	}
	cancel()
	if err := <-done; !oci.HasCode(err, oci.CodeUnavailable) {
		t.Errorf("request gone: %v", err)
	}
	if n := h.waiting.Load(); n != queue-1 {
		t.Errorf("%d wait, want %d", n, queue-1)
	}
}
