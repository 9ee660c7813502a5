package warm

import (
	"fmt"
	"path"
	"strings"
)

// maxSelector is the size in bytes of the longest selector.
const maxSelector = 4 << 10

// Selector selects nodes by their labels. It is a list of conditions with commas between
// them, which must all be met:
//
//	zone=a      the label zone is a; * and ? in the value stand for any characters
//	zone!=a     the label zone is not a, or there is none
//	gpu         there is a label gpu
//	!gpu        there is no label gpu
//
// The label name is the node's own name. The empty selector selects all nodes.
type Selector struct{ conditions []condition }

type condition struct {
	key, value string
	// not negates the condition; exists says that any value will do.
	not, exists bool
}

// ParseSelector parses a selector.
func ParseSelector(s string) (Selector, error) {
	var sel Selector
	if len(s) > maxSelector {
		return sel, fmt.Errorf("the selector of nodes has %d bytes, at most %d are allowed", len(s), maxSelector)
	}
	if strings.TrimSpace(s) == "" {
		return sel, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		c, err := parseCondition(strings.TrimSpace(part))
		if err != nil {
			return Selector{}, err
		}
		sel.conditions = append(sel.conditions, c)
	}
	return sel, nil
}

func parseCondition(s string) (c condition, err error) {
	key, value, ok := strings.Cut(s, "=")
	switch {
	case !ok:
		c.key, c.not = strings.CutPrefix(s, "!")
		c.exists = true
	case strings.HasSuffix(key, "!"):
		c = condition{key: key[:len(key)-1], value: value, not: true}
	default:
		c = condition{key: key, value: strings.TrimPrefix(value, "=")} // == is the same
	}
	c.key, c.value = strings.TrimSpace(c.key), strings.TrimSpace(c.value)
	if !validKey(c.key) || !text(c.value, maxText) {
		return c, fmt.Errorf("%.80q is no condition on nodes: write KEY=VALUE, KEY!=VALUE, KEY or !KEY, with commas between several", s)
	}
	if _, err := path.Match(c.value, ""); err != nil {
		return c, fmt.Errorf("%.80q has a pattern that is not closed", s)
	}
	return c, nil
}

func validKey(s string) bool {
	return s != "" && len(s) <= maxText && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_./", r)
	})
}

// Selects reports whether the selector selects a node with a name and other labels.
func (s Selector) Selects(node string, labels map[string]string) bool {
	for _, c := range s.conditions {
		value, there := labels[c.key]
		if c.key == NodeLabel {
			value, there = node, true
		}
		met := there
		if !c.exists {
			// A slash in a label is an ordinary character.
			matches, _ := path.Match(strings.ReplaceAll(c.value, "/", "\x01"), strings.ReplaceAll(value, "/", "\x01"))
			met = there && matches
		}
		if met == c.not {
			return false
		}
	}
	return true
}
