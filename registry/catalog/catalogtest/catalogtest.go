// Package catalogtest contains what the tests of the catalogue's packages share: empty
// databases of both kinds, and a check of the errors that changes return.
package catalogtest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"example.org/slipway/internal/backendtest"
)

// Servers are the servers that the tests of a package share. [Main] ends them.
type Servers struct{ backendtest.Shared }

// Main runs the tests of a package, ends the servers, and looks for goroutines that are left.
func (s *Servers) Main(m *testing.M) {
	code := m.Run()
	s.Close()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Bed is one empty database of either kind.
type Bed struct {
	Path string // of SQLite
	DSN  string // of PostgreSQL
}

// SQLite returns an empty database in a file.
func SQLite(t testing.TB) *Bed { return &Bed{Path: filepath.Join(t.TempDir(), "catalog.db")} }

// Bed returns an empty database on PostgreSQL.
func (s *Servers) Bed(t testing.TB) *Bed {
	t.Helper()
	p := s.Postgres(t)
	return &Bed{DSN: p.DSN(p.CreateDatabase(t))}
}

// OnBoth runs a test on SQLite and on PostgreSQL.
func (s *Servers) OnBoth(t *testing.T, test func(*testing.T, *Bed)) {
	t.Run("sqlite", func(t *testing.T) { test(t, SQLite(t)) })
	t.Run("postgres", func(t *testing.T) { test(t, s.Bed(t)) })
}

// IsVerdict reports whether an error is a verdict on a change; see engine.Verdict.
func IsVerdict(err error) bool {
	var v interface {
		error
		Verdict()
	}
	return errors.As(err, &v)
}

// Verdicts checks the errors that the package in the working directory declares. Each
// must be listed either as a verdict or as a failure, and its type must agree.
func Verdicts(t *testing.T, verdicts map[string]error, failures ...string) {
	t.Helper()
	for _, name := range errorsDeclared(t) {
		v, known := verdicts[name]
		switch {
		case known == slices.Contains(failures, name):
			t.Errorf("%s: say in this test whether a change returns it as its answer; if so, make it a verdict", name)
		case known && !IsVerdict(v):
			t.Errorf("%s is no verdict", name)
		case known && !IsVerdict(fmt.Errorf("wrapped: %w", v)):
			t.Errorf("%s is no verdict once it is wrapped", name)
		}
	}
}

// errorsDeclared returns the names of the error variables and error types that the source
// in the working directory declares.
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
