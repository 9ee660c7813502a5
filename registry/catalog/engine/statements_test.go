package engine

import (
	"context"
	"database/sql"
	"errors"
	"testing"
)

// TestStatementsDoNotWait checks that a caller which wants a prepared statement does not wait for
// another statement that is being prepared. A caller which wants that one waits only as long as its
// context allows.
func TestStatementsDoNotWait(t *testing.T) {
	const known, slow = `SELECT 1`, `SELECT 2`
	readers := openTest(t, nil).lite.readers
	begun, held := make(chan struct{}), make(chan struct{})
	times := 0
	s := statements{prepare: func(ctx context.Context, query string) (*sql.Stmt, error) {
		if query == slow {
			times++
			close(begun)
			<-held
		}
		return readers.PrepareContext(ctx, query)
	}}
	t.Cleanup(s.close)
	first, err := s.get(t.Context(), known)
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 2)
	ask := func() {
		_, err := s.get(t.Context(), slow)
		results <- err
	}
	go ask()
	<-begun
	if again, err := s.get(t.Context(), known); again != first || err != nil {
		t.Errorf("while another is prepared: %p, want %p, %v", again, first, err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := s.get(ended, slow); !errors.Is(err, context.Canceled) {
		t.Errorf("who gave up gets %v", err)
	}
	go ask()
	close(held)
	for range 2 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if times != 1 {
		t.Errorf("it was prepared %d times", times)
	}
}

// TestStatementsAgain checks that a statement whose preparation failed is prepared at the next
// request.
func TestStatementsAgain(t *testing.T) {
	readers := openTest(t, nil).lite.readers
	broken := errors.New("no connection")
	s := statements{prepare: func(context.Context, string) (*sql.Stmt, error) { return nil, broken }}
	t.Cleanup(s.close)
	if _, err := s.get(t.Context(), `SELECT 1`); !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	s.prepare = readers.PrepareContext
	if _, err := s.get(t.Context(), `SELECT 1`); err != nil {
		t.Errorf("again: %v", err)
	}
}
