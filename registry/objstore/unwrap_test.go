package objstore_test

import (
	"context"
	"testing"

	"example.org/slipway/registry/objstore"
	"example.org/slipway/registry/objstore/memstore"
)

// plain passes everything on.
type plain struct{ objstore.Store }

func (p plain) Unwrap() objstore.Store { return p.Store }

// moving is a store that can move.
type moving struct {
	objstore.Store
	moves []string
}

func (m *moving) Move(_ context.Context, from, to string) error {
	m.moves = append(m.moves, from+" "+to)
	return nil
}

// watching takes part in moves.
type watching struct {
	plain
	seen int
}

func (w *watching) Adapt(target any) bool {
	if t, ok := target.(*objstore.Mover); ok {
		if inner, ok := objstore.As[objstore.Mover](w.Store); ok {
			*t = &watched{w, inner}
			return true
		}
	}
	return false
}

type watched struct {
	w     *watching
	inner objstore.Mover
}

func (m *watched) Move(ctx context.Context, from, to string) error {
	m.w.seen++
	return m.inner.Move(ctx, from, to)
}

func TestAs(t *testing.T) {
	mem := memstore.New(nil)
	t.Run("through wrappers", func(t *testing.T) {
		sw, ok := objstore.As[objstore.UploadSweeper](plain{&watching{plain: plain{mem}}})
		if !ok || sw != objstore.UploadSweeper(mem) {
			t.Errorf("got %v, %t; want the store in memory", sw, ok)
		}
	})
	t.Run("adapted", func(t *testing.T) {
		inner := &moving{Store: mem}
		w := &watching{plain: plain{inner}}
		m, ok := objstore.As[objstore.Mover](plain{w})
		if !ok {
			t.Fatal("got no Mover")
		}
		if err := m.Move(t.Context(), "a", "b"); err != nil || w.seen != 1 || len(inner.moves) != 1 {
			t.Errorf("Move: got %v, seen %d, moved %v; want one each", err, w.seen, inner.moves)
		}
	})
	t.Run("not there", func(t *testing.T) {
		if m, ok := objstore.As[objstore.Mover](plain{&watching{plain: plain{mem}}}); ok || m != nil {
			t.Errorf("got %v, %t; the store cannot move", m, ok)
		}
		if _, ok := objstore.As[objstore.Redirector](nil); ok {
			t.Error("no store has an ability")
		}
	})
}
