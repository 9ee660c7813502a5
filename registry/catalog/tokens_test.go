package catalog_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/catalogtest"
	"example.org/slipway/registry/catalog/tokenfacts"
)

// TestTokens records, reads, uses and revokes tokens.
func TestTokens(t *testing.T) { servers.OnBoth(t, testTokens) }

func testTokens(t *testing.T, base *catalogtest.Bed) {
	ctx, c := t.Context(), tokenfacts.New(open(t, base, nil).DB)
	at := func(s int64) time.Time { return time.UnixMilli(s * 1000) }
	one := tokenfacts.Token{ID: "one", Robot: "ci", Hash: []byte{1, 0, 2}, Rights: `[{}]`, Creator: "root", Created: at(10), Expires: at(20)}
	two := tokenfacts.Token{ID: "two", Robot: "ci", Hash: []byte{2}, Rights: `[]`, Created: at(11)}
	other := tokenfacts.Token{ID: "ci-3", Robot: "build", Hash: []byte{3}, Rights: `[]`, Created: at(12)}
	for _, token := range []tokenfacts.Token{two, one, other} {
		if err := c.Add(ctx, token); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Add(ctx, one); err == nil {
		t.Error("two tokens have one id")
	}
	for _, used := range []map[string]time.Time{{"one": at(15), "gone": at(15)}, {"one": at(14), "two": at(13)}} {
		if err := c.NoteUse(ctx, used); err != nil {
			t.Fatal(err)
		}
	}
	one.Used, two.Used = at(15), at(13)
	got, err := c.List(ctx)
	if diff := cmp.Diff([]tokenfacts.Token{other, one, two}, got); err != nil || diff != "" {
		t.Errorf("listed: %v (-want +got)\n%s", err, diff)
	}
	if got, err := c.Get(ctx, "one"); err != nil || !cmp.Equal(got, one) {
		t.Errorf("Get: %+v, %v", got, err)
	}
	if _, err := c.Revoke(ctx, "nobody"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("revoke what is not there: %v", err)
	}
	if got, err := c.Revoke(ctx, "ci-3"); err != nil || !cmp.Equal(got, []tokenfacts.Token{other}) {
		t.Errorf("revoke by id: %+v, %v", got, err)
	}
	if got, err := c.Revoke(ctx, "ci"); err != nil || !cmp.Equal(got, []tokenfacts.Token{one, two}) {
		t.Errorf("revoke a robot: %+v, %v", got, err)
	}
	if _, err := c.Get(ctx, "one"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("Get after Revoke: %v", err)
	}
}
