package slipway_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
)

// A package with more lines than mostLines, or a type with more exported methods than
// mostMethods, has more than one subject.
const (
	mostLines   = 3500
	mostMethods = 40
)

// larger lists the packages that may have more lines, with the number of lines and the reason.
var larger = map[string]struct {
	lines  int
	reason string
}{
	"gear/filestore":       {3600, "reading, writing and settling packs share places, dictionaries and claims"},
	"node/gearfs":          {5700, "the queues of fetches, the requests that run, the images and the containers that wait share one order of locks"},
	"workload/trace/store": {3800, "the readers and writers of one file format, which share its pages"},
}

// wider lists the types that may have more methods, with the reason.
var wider = map[string]string{
	"registry.Registry": "it implements the operations of OCI Distribution, and those of mirrors on the same blobs",
}

// TestSizes checks that packages and types have one subject each.
func TestSizes(t *testing.T) {
	lines := map[string]int{}
	methods := map[string]int{}
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if top := path.Base(name); err == nil && (top == "integration" || top == "bench" || top == "testdata" || strings.HasPrefix(top, ".") && top != ".") {
				return fs.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		dir := path.Dir(name)
		lines[dir] += bytes.Count(b, []byte("\n"))
		f, err := parser.ParseFile(token.NewFileSet(), name, b, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if m, ok := decl.(*ast.FuncDecl); ok && m.Recv != nil && m.Name.IsExported() {
				methods[dir+"."+receiver(m.Recv.List[0].Type)]++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, n := range lines {
		most := max(mostLines, larger[dir].lines)
		if n > most {
			t.Errorf("package %s has %d lines, more than %d: give a part of it a package of its own", dir, n, most)
		}
		if _, ok := larger[dir]; ok && n <= mostLines {
			t.Errorf("package %s has only %d lines: take it out of the list", dir, n)
		}
	}
	for name, n := range methods {
		if n > mostMethods && wider[name] == "" {
			t.Errorf("type %s has %d exported methods, more than %d", name, n, mostMethods)
		}
	}
}

// receiver returns the name of a method's type.
func receiver(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return receiver(x.X)
	case *ast.IndexExpr:
		return receiver(x.X)
	case *ast.IndexListExpr:
		return receiver(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}
