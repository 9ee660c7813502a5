package config

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Override is a value given on the command line. It outweighs everything else.
type Override struct {
	// Key is the full key, like http.addr. An entry of a list is its index:
	// http.tls.clientcas.0.
	Key string
	// Value is the value as text; lists and sections are YAML.
	Value string
	// Source names it in messages, like "--addr". Default "flag".
	Source string
}

// step is one level of a key: a name, or the index of a list.
type step struct {
	key   string
	index int // -1 for a name
}

// route is a key found by its name in the environment or on the command line.
type route struct {
	steps []step
	typ   reflect.Type // nil below a key that is free or foreign
	alias string       // the other name it was found by
}

func (r route) path() string {
	var b strings.Builder
	for _, s := range r.steps {
		switch {
		case s.index >= 0:
			fmt.Fprintf(&b, "[%d]", s.index)
		case b.Len() > 0:
			b.WriteString("." + s.key)
		default:
			b.WriteString(s.key)
		}
	}
	return b.String()
}

func named(path string) []step {
	var steps []step
	for k := range strings.SplitSeq(path, ".") {
		steps = append(steps, step{k, -1})
	}
	return steps
}

// router finds keys whose levels are joined by sep. Our keys contain '_' like
// the names of variables, so a name is matched against the keys that exist,
// the longest first, and not cut at each '_'.
type router struct {
	sep  string
	fold func(string) string // how a key is written in a name
}

var (
	envRouter  = router{"_", strings.ToUpper}
	flagRouter = router{".", func(s string) string { return s }}
)

// find returns the key that name names, below the steps already taken.
func (r router) find(t reflect.Type, steps []step, name string) (route, bool) {
	if name == "" {
		return route{}, false
	}
	t = deref(t)
	switch shapeOf(t) {
	case shapeSection:
		return r.findKey(t, steps, name)
	case shapeList:
		num, rest, more := strings.Cut(name, r.sep)
		i, err := strconv.Atoi(num)
		if err != nil || i < 0 {
			return route{}, false
		}
		steps = append(slices.Clone(steps), step{index: i})
		if !more {
			return route{steps: steps, typ: t.Elem()}, true
		}
		return r.find(t.Elem(), steps, rest)
	case shapeMap:
		return r.findFree(t, steps, name)
	default:
		return route{}, false
	}
}

func (r router) findKey(t reflect.Type, steps []step, name string) (route, bool) {
	path := route{steps: steps}.path()
	keys := knownKeys(t, path)
	slices.SortStableFunc(keys, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	fields := fieldsOf(t)
	for _, key := range keys {
		rest, found := strings.CutPrefix(name, r.fold(key))
		if !found {
			continue
		}
		at := join(path, key)
		below := append(slices.Clone(steps), step{key, -1})
		if to := aliasOf(at); to != at {
			below = named(to)
		}
		i := indexOf(fields, key)
		if rest == "" {
			if i < 0 { // an alias has the type of its target
				return route{below, typeAt(below), at}, true
			}
			return route{steps: below, typ: fields[i].typ}, true
		}
		rest, found = strings.CutPrefix(rest, r.sep)
		if !found {
			continue
		}
		if _, ok := foreign(at); ok && i < 0 {
			for k := range strings.SplitSeq(strings.ToLower(rest), r.sep) {
				below = append(below, step{k, -1})
			}
			return route{steps: below}, true
		}
		typ := typeAt(below) // of what it is another name of
		if i >= 0 {
			typ = fields[i].typ
		}
		if found, ok := r.find(typ, below, rest); ok {
			return found, true
		}
	}
	return route{}, false
}

// findFree takes the rest of a name as the key of a map, but for an index at
// its end when the map holds lists. Variables are upper case by custom, keys of
// such maps (header names, log fields) lower.
func (r router) findFree(t reflect.Type, steps []step, name string) (route, bool) {
	typ, index := t.Elem(), -1
	if shapeOf(typ) == shapeList {
		if i := strings.LastIndex(name, r.sep); i > 0 {
			if n, err := strconv.Atoi(name[i+len(r.sep):]); err == nil && n >= 0 {
				name, index, typ = name[:i], n, typ.Elem()
			}
		}
	}
	if r.sep == "_" {
		name = strings.ToLower(name)
	}
	steps = append(slices.Clone(steps), step{name, -1})
	if index >= 0 {
		steps = append(steps, step{index: index})
	}
	return route{steps: steps, typ: typ}, true
}

// typeAt returns the type of the key that steps name, nil when it has none.
func typeAt(steps []step) reflect.Type {
	t := reflect.TypeFor[Config]()
	for _, s := range steps {
		t = deref(t)
		if t.Kind() != reflect.Struct {
			return nil
		}
		i := indexOf(fieldsOf(t), s.key)
		if i < 0 {
			return nil
		}
		t = fieldsOf(t)[i].typ
	}
	return t
}

// overlay lays values over the tree of the file.
type overlay struct {
	*report
	root *node
	typ  reflect.Type // of the configuration
}

// rootKey is what storage.root means with the storage driver that the layers so
// far choose.
func (o *overlay) rootKey() string {
	if st := o.root.child("storage"); st != nil && (st.child("s3") != nil || st.child("swift") != nil) {
		return "storage.directory"
	}
	return aliasOf(aliasRoot)
}

// set puts a value, given as text, at a route.
func (o *overlay) set(rt route, text string, at place) {
	if rt.alias == aliasRoot {
		rt.steps = named(o.rootKey())
	}
	val := &node{kind: scalarNode, text: text, at: at}
	if rt.typ != nil {
		shape := shapeOf(rt.typ)
		if text == "" && (shape != shapeScalar || deref(rt.typ).Kind() != reflect.String) {
			return // an empty variable is one that is not set
		}
		if shape != shapeScalar && shape != shapePresent {
			if val = parseTree([]byte(text), at.name, o.report); val == nil {
				return
			}
			unline(val, at)
		}
	}
	parent := o.root
	for i, s := range rt.steps {
		last := i == len(rt.steps)-1
		next, ok := o.enter(parent, s, at)
		if !ok {
			o.problem(at, rt.path(), "cannot be set: what the key stands in has another form")
			return
		}
		if last {
			o.place(parent, s, next, val, rt.path())
			return
		}
		if next == nil {
			next = &node{at: at}
			o.place(parent, s, nil, next, "")
		}
		parent = next
	}
}

// unline gives a value out of a variable, which has no lines, its place.
func unline(n *node, at place) {
	n.at = at
	for _, it := range n.items {
		unline(it, at)
	}
	for i := range n.entries {
		n.entries[i].at = at
		unline(n.entries[i].val, at)
	}
}

// enter makes n a section or list, as the step needs, and returns what stands
// at the step, nil for nothing. An index may be the one behind the last.
func (o *overlay) enter(n *node, s step, at place) (*node, bool) {
	want := dictNode
	if s.index >= 0 {
		want = listNode
	}
	if n.kind == nullNode {
		n.kind, n.at = want, at
	}
	switch {
	case n.kind != want || s.index > len(n.items):
		return nil, false
	case want == dictNode:
		return n.child(s.key), true
	case s.index == len(n.items):
		return nil, true
	default:
		return n.items[s.index], true
	}
}

// place puts val at a step that enter has prepared.
func (o *overlay) place(parent *node, s step, old, val *node, path string) {
	if rivals, ok := scalarForms[path]; ok && val.kind == scalarNode {
		val = choose(old, val, rivals)
	}
	switch {
	case s.index < 0:
		parent.put(s.key, val.at, val)
	case s.index == len(parent.items):
		parent.items = append(parent.items, val)
	default:
		parent.items[s.index] = val
	}
}

// choose turns a section given as one word into a section with that entry. Its
// rivals go; the other entries, and those of the entry itself, stay.
func choose(old, word *node, rivals []string) *node {
	n := &node{kind: dictNode, at: word.at}
	if old != nil && old.kind == dictNode {
		for _, e := range old.entries {
			if e.key == word.text || !slices.Contains(rivals, e.key) {
				n.entries = append(n.entries, e)
			}
		}
	}
	if n.child(word.text) == nil {
		n.put(word.text, word.at, &node{kind: dictNode, at: word.at})
	}
	return n
}

// normalize rewrites short and old forms in the tree to the ones that decode
// knows. It is called after each change, so no layer sees another's.
func (o *overlay) normalize() {
	for section, rivals := range scalarForms {
		for i, e := range o.root.entries {
			if e.key == section && e.val.kind == scalarNode && e.val.text != "" {
				o.root.entries[i].val = choose(nil, e.val, rivals)
			}
		}
	}
	for _, a := range slices.Backward(aliases) { // the drivers' before the root's
		if a.from == aliasRoot {
			a.to = o.rootKey()
		}
		o.resolve(a)
	}
}

// resolve moves the value of an alias to the key it stands for.
func (o *overlay) resolve(a alias) {
	parent := o.root
	section, key := splitKey(a.from)
	if section != "" {
		if parent = o.root.child(section); parent == nil || parent.kind != dictNode {
			return
		}
	}
	e, ok := parent.remove(key)
	if !ok || e.val.kind == nullNode {
		return
	}
	n := o.root
	for _, s := range named(a.to) {
		next, ok := o.enter(n, s, e.at)
		if !ok {
			o.problem(e.at, a.from, "stands beside a "+a.to+" of another form")
			return
		}
		if next == nil {
			next = &node{at: e.at}
			n.put(s.key, e.at, next)
		}
		n = next
	}
	if n.kind == nullNode {
		*n = *e.val
		return
	}
	if n.kind != e.val.kind || n.text != e.val.text {
		o.problem(e.at, a.from, "means the same as "+a.to+", and they differ")
	}
}

// applyOverrides lays the command line over the tree.
func (o *overlay) applyOverrides(overrides []Override) {
	sorted := slices.Clone(overrides)
	slices.SortStableFunc(sorted, func(a, b Override) int { return compareNames(a.Key, b.Key) })
	for _, ov := range sorted {
		at := place{name: cmp.Or(ov.Source, "flag")}
		rt, ok := flagRouter.find(o.typ, nil, ov.Key)
		if !ok {
			o.problem(at, "", "unknown key "+ov.Key)
			continue
		}
		o.set(rt, ov.Value, at)
		o.normalize()
	}
}

// digits are the runs that compareNames compares as numbers.
var digits = regexp.MustCompile(`[0-9]+`)

// compareNames orders names so that a section comes before what is in it, and
// entry 2 of a list before entry 10.
func compareNames(a, b string) int {
	pad := func(s string) string {
		return digits.ReplaceAllStringFunc(s, func(n string) string { return fmt.Sprintf("%020s", n) })
	}
	return cmp.Or(strings.Compare(pad(a), pad(b)), strings.Compare(a, b))
}
