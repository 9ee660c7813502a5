// Package yamlfile reads YAML in the shape of Distribution's config.yml into structs
// whose tags describe the keys. It remembers the line of each value, overlays the
// environment and the command line, handles Distribution's keys that have no meaning
// here, and reports all problems at once. From the same tags it makes the schema, the
// annotated example, and the file without its secrets.
package yamlfile

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"
)

// These are the limits of a configuration file. A file within them takes little memory,
// whatever its aliases are.
const (
	// MaxFileBytes is the largest configuration file that is read, in bytes.
	MaxFileBytes = 1 << 20
	// maxNodes bounds the number of values of a file after its aliases are expanded.
	maxNodes = 100_000
	// maxDepth bounds the nesting. The deepest known key is 6 levels deep.
	maxDepth = 64
)

type NodeKind int

const (
	nullNode NodeKind = iota
	scalarNode
	listNode
	DictNode
)

func (k NodeKind) String() string {
	return [...]string{"nothing", "a single value", "a list", "a section"}[k]
}

// Node is a value before it has a type. Unlike a yaml.Node it has no aliases and knows
// its source, so that layers can be overlaid.
type Node struct {
	Kind    NodeKind
	text    string // of a scalar
	items   []*Node
	entries []entry
	At      Place
}

type entry struct {
	key string
	at  Place
	val *Node
}

// Child returns the value of a key of a section, or nil if there is none.
func (n *Node) Child(key string) *Node {
	for _, e := range n.entries {
		if e.key == key {
			return e.val
		}
	}
	return nil
}

// put sets an entry. It replaces an entry with the same name.
func (n *Node) put(key string, at Place, val *Node) {
	for i := range n.entries {
		if n.entries[i].key == key {
			n.entries[i] = entry{key, at, val}
			return
		}
	}
	n.entries = append(n.entries, entry{key, at, val})
}

// remove removes an entry and returns it.
func (n *Node) remove(key string) (entry, bool) {
	for i, e := range n.entries {
		if e.key == key {
			n.entries = append(n.entries[:i:i], n.entries[i+1:]...)
			return e, true
		}
	}
	return entry{}, false
}

// inert reports whether a value requests nothing. Such a value is empty or false, is a
// section with disabled: true, or consists only of such values.
func (n *Node) inert() bool {
	switch n.Kind {
	case nullNode:
		return true
	case scalarNode:
		on, isBool := parseBool(n.text)
		return n.text == "" || isBool && !on
	case listNode:
		for _, it := range n.items {
			if !it.inert() {
				return false
			}
		}
		return true
	}
	if d := n.Child("disabled"); d != nil && d.Kind == scalarNode {
		if off, _ := parseBool(d.text); off {
			return true
		}
	}
	for _, e := range n.entries {
		if !e.val.inert() {
			return false
		}
	}
	return true
}

// Parse reads one YAML document. An empty document gives a null node.
func Parse(text []byte, name string, r *Report) *Node {
	var doc yaml.Node
	err := yaml.Load(text, &doc, yaml.WithPlugin(depthLimit{}))
	if err != nil {
		if len(strings.TrimSpace(string(text))) == 0 || doc.Kind == 0 && onlyComments(text) {
			return &Node{At: Place{Name: name, line: 1}}
		}
		at, msg := yamlFault(err, name)
		r.AddProblem(at, "", msg)
		return nil
	}
	b := treeBuilder{name: name, report: r, left: maxNodes}
	return b.build(&doc, 0)
}

// onlyComments reports whether a text holds no YAML value at all.
func onlyComments(text []byte) bool {
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line != "" && line != "---" && line != "..." && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

// depthLimit makes the YAML parser reject nesting that no configuration has.
type depthLimit struct{}

// CheckDepth implements yaml.LoaderLimitsPlugin.
func (depthLimit) CheckDepth(depth int, _ *yaml.DepthContext) error {
	if depth > maxDepth {
		return fmt.Errorf("nested deeper than %d levels", maxDepth)
	}
	return nil
}

// CheckAlias implements yaml.LoaderLimitsPlugin. It allows everything, because
// treeBuilder expands and counts aliases.
func (depthLimit) CheckAlias(int, int) error { return nil }

// yamlFault returns the line of a YAML error and its text. It omits the values that the
// parser quotes in some errors.
func yamlFault(err error, name string) (Place, string) {
	at := Place{Name: name}
	var le *yaml.LoadError
	if !errors.As(err, &le) {
		return at, "not valid YAML"
	}
	at.line = max(le.Mark.Line, 1)
	msg := le.Message
	if i := strings.IndexAny(msg, `'"`); i >= 0 && strings.Contains(msg, "anchor") {
		msg = "unknown or misplaced anchor"
	}
	return at, "not valid YAML: " + msg
}

// treeBuilder converts a yaml.Node into a Node, and expands aliases into copies.
type treeBuilder struct {
	name   string
	report *Report
	left   int // values that may still be made
}

// build returns nil if the document cannot be used, after it reports why.
func (b *treeBuilder) build(y *yaml.Node, depth int) *Node {
	for y.Kind == yaml.AliasNode || y.Kind == yaml.DocumentNode {
		if y.Kind == yaml.DocumentNode {
			if len(y.Content) == 0 {
				return &Node{At: Place{b.name, 1}}
			}
			y = y.Content[0]
			continue
		}
		if y.Alias == nil {
			b.report.AddProblem(Place{b.name, y.Line}, "", "unknown or misplaced anchor")
			return nil
		}
		y = y.Alias
	}
	at := Place{b.name, max(y.Line, 1)}
	if b.left--; b.left < 0 {
		b.report.AddProblem(at, "", fmt.Sprintf("more than %d values, counting what aliases repeat", maxNodes))
		return nil
	}
	if depth > maxDepth {
		b.report.AddProblem(at, "", fmt.Sprintf("nested deeper than %d levels, counting what aliases repeat", maxDepth))
		return nil
	}
	switch y.Kind {
	case yaml.SequenceNode:
		return b.list(y, at, depth)
	case yaml.MappingNode:
		n := &Node{Kind: DictNode, At: at}
		if !b.dict(y, n, depth) {
			return nil
		}
		return n
	default:
		if y.Tag == "!!null" {
			return &Node{At: at}
		}
		return &Node{Kind: scalarNode, text: y.Value, At: at}
	}
}

func (b *treeBuilder) list(y *yaml.Node, at Place, depth int) *Node {
	n := &Node{Kind: listNode, At: at}
	for _, c := range y.Content {
		item := b.build(c, depth+1)
		if item == nil {
			return nil
		}
		n.items = append(n.items, item)
	}
	return n
}

// dict adds the entries of a mapping to n. Entries merged by "<<" are added last, and do
// not replace existing ones.
func (b *treeBuilder) dict(y *yaml.Node, n *Node, depth int) bool {
	seen := make(map[string]int, len(y.Content)/2)
	var merges []*yaml.Node
	for i := 0; i+1 < len(y.Content); i += 2 {
		k := y.Content[i]
		for k.Kind == yaml.AliasNode && k.Alias != nil {
			k = k.Alias
		}
		at := Place{b.name, max(y.Content[i].Line, 1)}
		if k.Kind != yaml.ScalarNode {
			b.report.AddProblem(at, "", "a key must be a single word")
			return false
		}
		if k.Value == "<<" && k.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0 {
			merges = append(merges, y.Content[i+1])
			continue
		}
		if first, dup := seen[k.Value]; dup {
			b.report.AddProblem(at, k.Value, fmt.Sprintf("the key stands twice in one section, first in line %d", first))
			continue
		}
		seen[k.Value] = at.line
		val := b.build(y.Content[i+1], depth+1)
		if val == nil {
			return false
		}
		n.entries = append(n.entries, entry{k.Value, at, val})
	}
	for _, m := range merges {
		if !b.merge(m, n, seen, depth) {
			return false
		}
	}
	return true
}

// merge adds to n what "<<" names: a section or a list of sections.
func (b *treeBuilder) merge(y *yaml.Node, n *Node, seen map[string]int, depth int) bool {
	src := b.build(y, depth+1)
	if src == nil {
		return false
	}
	sources := []*Node{src}
	if src.Kind == listNode {
		sources = src.items
	}
	for _, s := range sources {
		if s.Kind != DictNode {
			b.report.AddProblem(s.At, "", `"<<" must name a section, or a list of sections`)
			return false
		}
		for _, e := range s.entries {
			if _, have := seen[e.key]; !have {
				seen[e.key] = e.at.line
				n.entries = append(n.entries, e)
			}
		}
	}
	return true
}
