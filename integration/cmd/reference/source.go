package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A metric is defined where its options are written, or where a function that writes the
// options is called: `counter := func(name, help string) ... Opts{Name: "slipway_x_" + name,
// Help: help}`. So a definition begins at the options. As long as it depends on parameters of
// the function around it, it continues at the calls of that function. Anything that cannot be
// read in this way is an error, so that no metric goes missing unnoticed.

// definition is a metric. Some of its parts may still depend on parameters.
type definition struct {
	name, help []ast.Expr // texts to concatenate
	kind       string
	open       []ast.Expr // labels that are not known yet
	at         *scope
}

// scope is a function, with the place where its calls are found.
type scope struct {
	file   *source
	fn     *ast.FuncType
	called string // the name it is called by; "" if it has none
	outer  *scope
}

// source is a parsed file of a package.
type source struct {
	pkg   string
	tree  *ast.File
	calls []call
}

type call struct {
	name string
	expr *ast.CallExpr
	in   *scope
}

// finder collects the metrics of a source tree.
type finder struct {
	fset  *token.FileSet
	files []*source
	defs  []definition
	found []metric
	bad   []error
}

// findMetrics reads the sources of the module at root.
func findMetrics(root string) ([]metric, error) {
	f := &finder{fset: token.NewFileSet()}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if _, mod := os.Stat(filepath.Join(file, "go.mod")); file != root && (mod == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		tree, err := parser.ParseFile(f.fset, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(file))
		f.files = append(f.files, &source{pkg: filepath.ToSlash(rel), tree: tree})
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, s := range f.files {
		for _, d := range s.tree.Decls {
			f.walk(d, &scope{file: s}, "")
		}
	}
	for len(f.defs) > 0 {
		d := f.defs[0]
		f.defs = f.defs[1:]
		f.follow(d)
	}
	if err := errors.Join(f.bad...); err != nil {
		return nil, err
	}
	return merge(f.found)
}

// walk notes the calls and definitions in a node. name is the name under which a function literal
// in it is called.
func (f *finder) walk(n ast.Node, in *scope, name string) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		in = &scope{file: in.file, fn: n.Type, called: n.Name.Name}
	case *ast.FuncLit:
		in = &scope{file: in.file, fn: n.Type, called: name, outer: in}
	case *ast.AssignStmt:
		for i, r := range n.Rhs {
			if id, ok := n.Lhs[min(i, len(n.Lhs)-1)].(*ast.Ident); ok {
				f.walk(r, in, id.Name)
			} else {
				f.walk(r, in, "")
			}
		}
		return
	case *ast.CallExpr:
		f.call(n, in)
	}
	ast.Inspect(n, func(child ast.Node) bool {
		if child == n || child == nil {
			return true
		}
		f.walk(child, in, "")
		return false
	})
}

// call notes a call, and the metric definition if it is one.
func (f *finder) call(c *ast.CallExpr, in *scope) {
	var name string
	switch fn := c.Fun.(type) {
	case *ast.Ident:
		name = fn.Name
	case *ast.SelectorExpr:
		name = fn.Sel.Name
		if pkg, ok := fn.X.(*ast.Ident); ok && pkg.Name == "prometheus" {
			f.define(name, c, in)
			return
		}
	}
	if name != "" {
		in.file.calls = append(in.file.calls, call{name, c, in})
	}
}

// define notes the metric that a call of the library makes.
func (f *finder) define(name string, c *ast.CallExpr, in *scope) {
	d := definition{at: in}
	switch base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(name, "New"), "Vec"), "Func"); {
	case name == "NewDesc" && len(c.Args) == 4:
		d.name, d.help, d.open = flat(c.Args[0]), flat(c.Args[1]), c.Args[2:4]
	case slices.Contains([]string{"Counter", "Gauge", "Histogram", "Summary"}, base):
		d.kind = strings.ToLower(base)
		opts, ok := c.Args[0].(*ast.CompositeLit)
		if !ok {
			f.fail(c, "its options are not written in place")
			return
		}
		var prefix []ast.Expr
		for _, e := range opts.Elts {
			kv := e.(*ast.KeyValueExpr)
			switch kv.Key.(*ast.Ident).Name {
			case "Namespace", "Subsystem":
				prefix = append(prefix, kv.Value, &ast.BasicLit{Kind: token.STRING, Value: `"_"`})
			case "Name":
				d.name = flat(kv.Value)
			case "Help":
				d.help = flat(kv.Value)
			case "ConstLabels":
				d.open = append(d.open, kv.Value)
			}
		}
		d.name = append(prefix, d.name...)
		if strings.HasSuffix(name, "Vec") {
			d.open = append(d.open, c.Args[1])
		}
	default:
		return
	}
	f.defs = append(f.defs, d)
}

// flat returns the parts of a concatenation of texts.
func flat(e ast.Expr) []ast.Expr {
	if b, ok := e.(*ast.BinaryExpr); ok && b.Op == token.ADD {
		return append(flat(b.X), flat(b.Y)...)
	}
	return []ast.Expr{e}
}

// follow completes a definition, or continues at the calls of the function that it is in.
func (f *finder) follow(d definition) {
	at := d.at
	for at != nil && !f.dependsOn(&d, at.fn) {
		at = at.outer
	}
	if at == nil {
		f.finish(&d)
		return
	}
	used := false
	for _, s := range f.files {
		for _, c := range s.calls {
			if s.pkg == at.file.pkg && at.called != "" && c.name == at.called && c.expr.Fun != nil && f.mayCall(c, at) {
				used = true
				f.defs = append(f.defs, d.with(at.fn, c))
			}
		}
	}
	if !used {
		f.fail(d.name[0], "it depends on parameters of a function whose calls are not found")
	}
}

// mayCall reports whether a call can call a function. A function that was assigned to a variable is
// only called within the function around it.
func (f *finder) mayCall(c call, at *scope) bool {
	if at.outer == nil {
		return len(c.expr.Args) >= len(params(at.fn))-1
	}
	for in := c.in; in != nil; in = in.outer {
		if in == at.outer {
			return true
		}
	}
	return false
}

// params returns the names of a function's parameters. variadic reports whether the last one is
// variadic.
func params(fn *ast.FuncType) []string {
	var list []string
	if fn == nil {
		return nil
	}
	for _, p := range fn.Params.List {
		for _, n := range p.Names {
			list = append(list, n.Name)
		}
	}
	return list
}

func variadic(fn *ast.FuncType) bool {
	if n := len(fn.Params.List); n > 0 {
		_, ok := fn.Params.List[n-1].Type.(*ast.Ellipsis)
		return ok
	}
	return false
}

func (f *finder) dependsOn(d *definition, fn *ast.FuncType) bool {
	names := params(fn)
	for _, list := range [][]ast.Expr{d.name, d.help, d.open} {
		for _, e := range list {
			if id, ok := e.(*ast.Ident); ok && slices.Contains(names, id.Name) {
				return true
			}
		}
	}
	return false
}

// with puts the arguments of a call into a definition.
func (d definition) with(fn *ast.FuncType, c call) definition {
	names := params(fn)
	put := func(list []ast.Expr) (out []ast.Expr) {
		for _, e := range list {
			id, ok := e.(*ast.Ident)
			i := -1
			if ok {
				i = slices.Index(names, id.Name)
			}
			switch {
			case i < 0:
				out = append(out, e)
			case i == len(names)-1 && variadic(fn):
				out = append(out, &ast.CompositeLit{Elts: c.expr.Args[min(i, len(c.expr.Args)):]})
			default:
				out = append(out, flat(c.expr.Args[i])...)
			}
		}
		return out
	}
	d.name, d.help, d.open, d.at = put(d.name), put(d.help), put(d.open), c.in
	return d
}

// pendingEvents is a gauge, although Distribution has given it the name of a counter.
const pendingEvents = "registry_notifications_pending_total"

// finish reads a definition that no longer depends on anything.
func (f *finder) finish(d *definition) {
	m := metric{pkg: d.at.file.pkg, kind: d.kind}
	m.name = f.text(d.name)
	m.help = f.text(d.help)
	for _, e := range d.open {
		m.labels = append(m.labels, f.labels(e, d.at)...)
	}
	if m.kind == "" { // the library learns the type only with the value; by convention the name shows it
		m.kind = "gauge"
		if strings.HasSuffix(m.name, "_total") && m.name != pendingEvents {
			m.kind = "counter"
		}
	}
	f.found = append(f.found, m)
}

func (f *finder) text(list []ast.Expr) string {
	var b strings.Builder
	for _, e := range list {
		lit, ok := e.(*ast.BasicLit)
		s := ""
		if ok {
			s, _ = strconv.Unquote(lit.Value)
		}
		if s == "" {
			f.fail(e, "a part of its name or help is no text in the source")
		}
		b.WriteString(s)
	}
	return b.String()
}

// labels returns the keys of a map or the elements of a list, which is written in place or in a
// variable of the function.
func (f *finder) labels(e ast.Expr, in *scope) []string {
	switch e := e.(type) {
	case *ast.Ident:
		if e.Name == "nil" {
			return nil
		}
		if lit := variable(in.file.tree, e.Name); lit != nil {
			return f.labels(lit, in)
		}
	case *ast.CompositeLit:
		var list []string
		for _, elt := range e.Elts {
			if kv, ok := elt.(*ast.KeyValueExpr); ok {
				elt = kv.Key
			}
			list = append(list, f.text([]ast.Expr{elt}))
		}
		return list
	}
	f.fail(e, "its labels are not written in place")
	return nil
}

// variable returns the literal that a variable of the file is set to.
func variable(tree *ast.File, name string) (lit *ast.CompositeLit) {
	ast.Inspect(tree, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && lit == nil {
			for i, l := range a.Lhs {
				if id, ok := l.(*ast.Ident); ok && id.Name == name && i < len(a.Rhs) {
					lit, _ = a.Rhs[i].(*ast.CompositeLit)
				}
			}
		}
		return true
	})
	return lit
}

func (f *finder) fail(n ast.Node, why string) {
	f.bad = append(f.bad, fmt.Errorf("%s: the metric cannot be read: %s", f.fset.Position(n.Pos()), why))
}
