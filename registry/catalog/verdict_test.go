package catalog

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// verdictValues returns the errors of this package that are answers to a change.
func verdictValues() map[string]error {
	return map[string]error{
		"ErrNotFound": ErrNotFound, "ErrNoRepository": ErrNoRepository, "ErrReferenced": ErrReferenced, "ErrNotStored": ErrNotStored,
		"ErrGearDeleting": ErrGearDeleting, "ErrGearStale": ErrGearStale, "ErrGearNeeded": ErrGearNeeded, "ErrLeased": ErrLeased, "ErrBusy": ErrBusy,
		"ErrDeleting": ErrDeleting, "ErrChanged": ErrChanged, "ErrInUse": ErrInUse, "ErrVolumeRemoving": ErrVolumeRemoving,
		"errDryRun": errDryRun, "MissingError": &MissingError{}, "ImmutableError": &ImmutableError{}, "MediaTypeError": &MediaTypeError{},
		"SizeError": &SizeError{}, "sentinel": &sentinel{"of a test"},
	}
}

// failureNames returns the errors of this package that no change returns as its answer: those of
// the database, of a caller, or of something around the changes.
func failureNames() []string {
	return []string{"errClosed", "errEnough", "ErrFull", "ErrLeaseLost", "ErrUnavailable", "errConnectionString", "errGivenUp", "errNotCommitted",
		"errWarned", "undecidedError", "LogDamagedError"}
}

// errorsDeclared returns the error variables and error types of this package's source.
func errorsDeclared(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			names = append(names, errorsOf(decl)...)
		}
	}
	return names
}

func errorsOf(decl ast.Decl) (names []string) {
	switch d := decl.(type) {
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			v, ok := spec.(*ast.ValueSpec)
			if !ok {
				continue
			}
			for _, n := range v.Names {
				if strings.HasPrefix(n.Name, "Err") || strings.HasPrefix(n.Name, "err") {
					names = append(names, n.Name)
				}
			}
		}
	case *ast.FuncDecl:
		if d.Recv == nil || d.Name.Name != "Error" {
			return nil
		}
		typ := d.Recv.List[0].Type
		if p, ok := typ.(*ast.StarExpr); ok {
			typ = p.X
		}
		names = append(names, typ.(*ast.Ident).Name)
	}
	return names
}

// TestVerdictsAreTyped checks that each error of this package is listed as a verdict or as a
// failure, and that its type agrees.
func TestVerdictsAreTyped(t *testing.T) {
	verdicts, failures := verdictValues(), failureNames()
	for _, name := range errorsDeclared(t) {
		v, known := verdicts[name]
		switch {
		case known == slices.Contains(failures, name):
			t.Errorf("%s: say in this test whether a change returns it as its answer; if so, make it a verdict", name)
		case known && !isVerdict(v):
			t.Errorf("%s is no verdict", name)
		case known && !isVerdict(fmt.Errorf("wrapped: %w", v)):
			t.Errorf("%s is no verdict once it is wrapped", name)
		}
	}
	for _, err := range []error{errClosed, ErrLeaseLost, ErrUnavailable, errNotCommitted, errWarned, &undecidedError{errors.New("x")}} {
		if isVerdict(err) {
			t.Errorf("the failure %q counts as a verdict", err)
		}
	}
}

// counting counts the commits of an engine.
type counting struct {
	engine
	commits int
}

func (c *counting) commit(t *tx) error {
	c.commits++
	return c.engine.commit(t)
}

// TestVerdictSharesCommit checks a batch in which one change is refused or fails after it wrote.
// The others must not be committed one by one.
func TestVerdictSharesCommit(t *testing.T) { onBoth(t, testVerdictSharesCommit) }

func testVerdictSharesCommit(t *testing.T, base *bed) {
	c := base.open(t, nil)
	failure := errors.New("a failure")
	type refusal struct {
		name  string
		err   error
		wrote bool
		most  int // commits
	}
	list := []refusal{{"failure", failure, false, 2}, {"failure after it wrote", failure, true, 2}}
	for name, err := range verdictValues() {
		list = append(list, refusal{name, err, false, 1}, refusal{name + " after it wrote", err, true, 2})
	}
	counted := &counting{engine: c.db.engine}
	release := c.db.hold(t)
	c.db.engine = counted // while the writer is busy with the change that holds it
	release()
	rows := 0
	for i, r := range list {
		release := c.db.hold(t)
		before := counted.commits
		var wg sync.WaitGroup
		for k := range maxBatch {
			wg.Go(func() {
				bad := k == 100
				err := c.db.write(t.Context(), func(t *tx) error {
					if bad && !r.wrote {
						return r.err
					}
					if err := put(t, i*maxBatch+k); err != nil || !bad {
						return err
					}
					return r.err
				})
				if bad != errors.Is(err, r.err) || !bad && err != nil {
					t.Errorf("%s: change %d got %v", r.name, k, err)
				}
			})
		}
		c.db.queued(maxBatch)
		release()
		wg.Wait()
		// One commit is that of the change that held the writer.
		if got := counted.commits - before - 1; got > r.most {
			t.Errorf("%s: a batch of %d took %d commits, want at most %d", r.name, maxBatch, got, r.most)
		}
		rows += maxBatch - 1
		if got := len(c.testRows(t)); got != min(rows, 10_000) {
			t.Errorf("%s: %d changes are there, want %d", r.name, got, rows)
		}
	}
}
