package yamlfile

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Override is a value from the command line. It overrides all other values.
type Override struct {
	// Key is the full key, like http.addr. An entry of a list is given by its index:
	// http.tls.clientcas.0.
	Key string
	// Value is the value as text; lists and sections are YAML.
	Value string
	// Source is the name of the override in messages, like "--addr". Default "flag".
	Source string
}

// step is one level of a key: a name, or an index of a list.
type step struct {
	key   string
	index int // -1 for a name
}

// route is a key that was found by its name in the environment or on the command line.
type route struct {
	steps []step
	typ   reflect.Type // nil below a free or foreign key
	alias string       // the alias by which it was found
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

// router finds keys whose levels are joined by sep. Our keys contain '_', as the names of
// variables do. So a name is compared with the existing keys, the longest first, instead
// of being split at each '_'.
type router struct {
	root reflect.Type // of the configuration
	sep  string
	fold func(string) string // how a key is written in a variable or flag name
}

func envRouter(root reflect.Type) router { return router{root, "_", strings.ToUpper} }

func flagRouter(root reflect.Type) router {
	return router{root, ".", func(s string) string { return s }}
}

// find returns the key that name denotes below the steps already taken.
func (r router) find(t reflect.Type, steps []step, name string) (route, bool) {
	if name == "" {
		return route{}, false
	}
	t = deref(t)
	switch ShapeOf(t) {
	case ShapeSection:
		return r.findKey(t, steps, name)
	case ShapeList:
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
	case ShapeMap:
		return r.findFree(t, steps, name)
	default:
		return route{}, false
	}
}

func (r router) findKey(t reflect.Type, steps []step, name string) (route, bool) {
	path := route{steps: steps}.path()
	keys := knownKeys(t, path)
	slices.SortStableFunc(keys, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	fields := FieldsOf(t)
	for _, key := range keys {
		rest, found := strings.CutPrefix(name, r.fold(key))
		if !found {
			continue
		}
		at := Join(path, key)
		below := append(slices.Clone(steps), step{key, -1})
		if to := aliasOf(at); to != at {
			below = named(to)
		}
		i := indexOf(fields, key)
		if rest == "" {
			if i < 0 { // an alias has the type of its target
				return route{below, typeAt(r.root, below), at}, true
			}
			return route{steps: below, typ: fields[i].Type}, true
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
		typ := typeAt(r.root, below) // of its target
		if i >= 0 {
			typ = fields[i].Type
		}
		if found, ok := r.find(typ, below, rest); ok {
			return found, true
		}
	}
	return route{}, false
}

// findFree takes the rest of a name as the key of a map. If the map holds lists, it
// splits off an index at the end. Variables are upper case by custom, and keys of such
// maps (header names, log fields) are lower case.
func (r router) findFree(t reflect.Type, steps []step, name string) (route, bool) {
	typ, index := t.Elem(), -1
	if ShapeOf(typ) == ShapeList {
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

// typeAt returns the type of the key that steps denote below a root, or nil if it has no
// type.
func typeAt(root reflect.Type, steps []step) reflect.Type {
	t := root
	for _, s := range steps {
		t = deref(t)
		if t.Kind() != reflect.Struct {
			return nil
		}
		i := indexOf(FieldsOf(t), s.key)
		if i < 0 {
			return nil
		}
		t = FieldsOf(t)[i].Type
	}
	return t
}

// Overlay overlays values on the tree of the file.
type Overlay struct {
	*Report
	Root *Node
	Type reflect.Type // of the configuration
}

// rootKey returns the key that storage.root means with the storage driver that the layers
// so far select.
func (o *Overlay) rootKey() string {
	if st := o.Root.Child("storage"); st != nil && (st.Child("s3") != nil || st.Child("swift") != nil) {
		return "storage.directory"
	}
	return aliasOf(aliasRoot)
}

// set sets the value at a route from a text.
func (o *Overlay) set(rt route, text string, at Place) {
	if rt.alias == aliasRoot {
		rt.steps = named(o.rootKey())
	}
	val := &Node{Kind: scalarNode, text: text, At: at}
	if rt.typ != nil {
		shape := ShapeOf(rt.typ)
		if text == "" && (shape != ShapeScalar || deref(rt.typ).Kind() != reflect.String) {
			return // an empty variable counts as not set
		}
		if shape != ShapeScalar && shape != shapePresent {
			if val = Parse([]byte(text), at.Name, o.Report); val == nil {
				return
			}
			unline(val, at)
		}
	}
	parent := o.Root
	for i, s := range rt.steps {
		last := i == len(rt.steps)-1
		next, ok := o.enter(parent, s, at)
		if !ok {
			o.AddProblem(at, rt.path(), "cannot be set: what the key stands in has another form")
			return
		}
		if last {
			o.place(parent, s, next, val, rt.path())
			return
		}
		if next == nil {
			next = &Node{At: at}
			o.place(parent, s, nil, next, "")
		}
		parent = next
	}
}

// unline sets the place of a value from a variable, which has no lines.
func unline(n *Node, at Place) {
	n.At = at
	for _, it := range n.items {
		unline(it, at)
	}
	for i := range n.entries {
		n.entries[i].at = at
		unline(n.entries[i].val, at)
	}
}

// enter makes n a section or a list, as the step requires. It returns what is at the
// step, or nil if there is nothing. An index may be one past the last.
func (o *Overlay) enter(n *Node, s step, at Place) (*Node, bool) {
	want := DictNode
	if s.index >= 0 {
		want = listNode
	}
	if n.Kind == nullNode {
		n.Kind, n.At = want, at
	}
	switch {
	case n.Kind != want || s.index > len(n.items):
		return nil, false
	case want == DictNode:
		return n.Child(s.key), true
	case s.index == len(n.items):
		return nil, true
	default:
		return n.items[s.index], true
	}
}

// place puts val at a step that enter has prepared.
func (o *Overlay) place(parent *Node, s step, old, val *Node, path string) {
	if rivals, ok := scalarForms[path]; ok && val.Kind == scalarNode {
		val = choose(old, val, rivals)
	}
	switch {
	case s.index < 0:
		parent.put(s.key, val.At, val)
	case s.index == len(parent.items):
		parent.items = append(parent.items, val)
	default:
		parent.items[s.index] = val
	}
}

// choose converts a section that is given as one word into a section with that entry. It
// removes the rival entries. It keeps all other entries, and the content of the entry
// itself.
func choose(old, word *Node, rivals []string) *Node {
	n := &Node{Kind: DictNode, At: word.At}
	if old != nil && old.Kind == DictNode {
		for _, e := range old.entries {
			if e.key == word.text || !slices.Contains(rivals, e.key) {
				n.entries = append(n.entries, e)
			}
		}
	}
	if n.Child(word.text) == nil {
		n.put(word.text, word.At, &Node{Kind: DictNode, At: word.At})
	}
	return n
}

// Normalize rewrites short and old forms in the tree to the forms that decode knows. It
// is called after each change, so that no layer sees another layer's forms.
func (o *Overlay) Normalize() {
	for section, rivals := range scalarForms {
		for i, e := range o.Root.entries {
			if e.key == section && e.val.Kind == scalarNode && e.val.text != "" {
				o.Root.entries[i].val = choose(nil, e.val, rivals)
			}
		}
	}
	for _, a := range slices.Backward(aliases) { // the aliases of drivers before the root's
		if a.from == aliasRoot {
			a.to = o.rootKey()
		}
		o.resolve(a)
	}
}

// resolve moves the value of an alias to the key that the alias stands for.
func (o *Overlay) resolve(a alias) {
	parent := o.Root
	section, key := splitKey(a.from)
	if section != "" {
		if parent = o.Root.Child(section); parent == nil || parent.Kind != DictNode {
			return
		}
	}
	e, ok := parent.remove(key)
	if !ok || e.val.Kind == nullNode {
		return
	}
	n := o.Root
	for _, s := range named(a.to) {
		next, ok := o.enter(n, s, e.at)
		if !ok {
			o.AddProblem(e.at, a.from, "stands beside a "+a.to+" of another form")
			return
		}
		if next == nil {
			next = &Node{At: e.at}
			n.put(s.key, e.at, next)
		}
		n = next
	}
	if n.Kind == nullNode {
		*n = *e.val
		return
	}
	if n.Kind != e.val.Kind || n.text != e.val.text {
		o.AddProblem(e.at, a.from, "means the same as "+a.to+", and they differ")
	}
}

// ApplyOverrides overlays the command line on the tree.
func (o *Overlay) ApplyOverrides(overrides []Override) {
	sorted := slices.Clone(overrides)
	slices.SortStableFunc(sorted, func(a, b Override) int { return compareNames(a.Key, b.Key) })
	for _, ov := range sorted {
		at := Place{Name: cmp.Or(ov.Source, "flag")}
		rt, ok := flagRouter(o.Type).find(o.Type, nil, ov.Key)
		if !ok {
			o.AddProblem(at, "", "unknown key "+ov.Key)
			continue
		}
		o.set(rt, ov.Value, at)
		o.Normalize()
	}
}

// digits matches the digits that compareNames compares as numbers.
var digits = regexp.MustCompile(`[0-9]+`)

// compareNames orders names so that a section precedes its content, and entry 2 of a list
// precedes entry 10.
func compareNames(a, b string) int {
	pad := func(s string) string {
		return digits.ReplaceAllStringFunc(s, func(n string) string { return fmt.Sprintf("%020s", n) })
	}
	return cmp.Or(strings.Compare(pad(a), pad(b)), strings.Compare(a, b))
}
