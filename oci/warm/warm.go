// Package warm is what a registry, its clients and nodes say about images that are fetched
// before they are started. A client orders that nodes have an image; the order selects the
// nodes by their labels. Nodes ask the registry what they shall fetch, so nobody needs to
// reach a node. A node gets only orders for repositories that it may pull from, and fetches
// with its own credentials.
package warm

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"example.org/slipway/oci"
)

// Request is what a client orders.
type Request struct {
	// Reference is a tag or digest; default latest.
	Reference string `json:"reference,omitempty"`
	// Nodes selects the nodes, see [Selector]. Nil selects none: only the registry itself
	// gets the image ready.
	Nodes *string `json:"nodes,omitempty"`
	// All says that nodes fetch the whole image, and not only the files that its
	// containers open when they start.
	All bool `json:"all,omitempty"`
	// Seconds is how long the order holds, also for nodes that appear later, and how long
	// a node keeps an image that nothing uses. Default: [Lifetime].
	Seconds int64 `json:"seconds,omitempty"`
}

const (
	// Lifetime is how long an order holds by default, and MaxLifetime at most.
	Lifetime    = 6 * time.Hour
	MaxLifetime = 30 * 24 * time.Hour
)

// State says how far something is.
type State string

// The states of an order at a node.
const (
	// Waiting means that the node knows the order and has not begun.
	Waiting State = "waiting"
	// Running means that it fetches, or that it tries again soon.
	Running State = "running"
	// Done means that it has what was ordered.
	Done State = "done"
	// Failed means that it cannot have it.
	Failed State = "failed"
)

// The other states of an order as a whole, which is done when all nodes have ended, and
// failed if any of them failed.
const (
	Cancelled State = "cancelled"
	Expired   State = "expired"
)

// Ended reports whether nothing more happens.
func (s State) Ended() bool { return s != Waiting && s != Running }

// Progress is how far a node is with an order. Files and Bytes are the amounts that it
// has, out of the totals that were ordered.
type Progress struct {
	State      State `json:"state"`
	Files      int64 `json:"files"`
	FilesTotal int64 `json:"files_total"`
	Bytes      int64 `json:"bytes"`
	BytesTotal int64 `json:"bytes_total"`
	// Reason says why it failed or is tried again.
	Reason string `json:"reason,omitempty"`
}

// Order is an order as a registry keeps it.
type Order struct {
	ID string `json:"id"`
	// Repository and Digest name the image, Reference is how the order called it.
	Repository string     `json:"repository"`
	Reference  string     `json:"reference"`
	Digest     oci.Digest `json:"digest"`
	Nodes      *string    `json:"nodes,omitempty"`
	All        bool       `json:"all"`
	// By is the user who ordered it, and Cause what led to it: request or push.
	By      string    `json:"by,omitempty"`
	Cause   string    `json:"cause"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	State   State     `json:"state"`
	// Registry is the registry's own part: what it fetches from upstream and into its
	// cache.
	Registry Progress `json:"registry"`
	// Matching counts the nodes that asked lately and that the order selects. Counts
	// counts nodes by their state.
	Matching int           `json:"matching"`
	Counts   map[State]int `json:"counts"`
	// Progress is of each node. Lists of orders leave it out.
	Progress []NodeProgress `json:"progress,omitempty"`
}

// For says for which nodes the order is.
func (o Order) For() string {
	switch {
	case o.Nodes == nil:
		return "only the registry"
	case *o.Nodes == "":
		return "all nodes"
	}
	return *o.Nodes
}

// Count returns how many nodes are in a state.
func (o Order) Count(state string) int { return o.Counts[State(state)] }

// NodeProgress is how far a node is. Away says that the node has not asked lately.
type NodeProgress struct {
	Node string    `json:"node"`
	Seen time.Time `json:"seen"`
	Away bool      `json:"away,omitempty"`
	Progress
}

// Poll is what a node tells a registry when it asks what to do.
type Poll struct {
	// Node is the host's name. A node chooses its own name and labels.
	Node   string            `json:"node"`
	Labels map[string]string `json:"labels,omitempty"`
	// Tasks are how far the node is with each order, by id.
	Tasks map[string]Progress `json:"tasks,omitempty"`
}

// Answer is what a node shall fetch. The node ends what it fetches for orders that are not
// in the list.
type Answer struct {
	Tasks []Task `json:"tasks"`
	// Again is in how many seconds the node asks again.
	Again float64 `json:"again"`
}

// Task is what one order asks of a node.
type Task struct {
	ID         string     `json:"id"`
	Repository string     `json:"repository"`
	Reference  string     `json:"reference"`
	Digest     oci.Digest `json:"digest"`
	All        bool       `json:"all,omitempty"`
	Expires    time.Time  `json:"expires"`
}

const (
	// NodeLabel is the label that holds the name of a node. A node cannot set it.
	NodeLabel = "name"

	maxText   = 255 // bytes of a name, a label's key or its value
	maxReason = 500
	maxLabels = 64
	// MaxTasks is how many orders a node is given at a time.
	MaxTasks = 200
)

// Check returns an error for a poll that no agent would send.
func (p *Poll) Check() error {
	if p.Node == "" || !text(p.Node, maxText) {
		return errors.New("the node has no name, or one that is too long or no text")
	}
	if len(p.Labels) > maxLabels || len(p.Tasks) > MaxTasks {
		return fmt.Errorf("a node has at most %d labels and %d tasks", maxLabels, MaxTasks)
	}
	if err := CheckLabels(p.Labels); err != nil {
		return err
	}
	for id, t := range p.Tasks {
		switch {
		case len(id) > maxText:
			return errors.New("the id of a task is too long")
		case t.State != Waiting && t.State != Running && t.State != Done && t.State != Failed:
			return fmt.Errorf("%.40q is not a state of a task", string(t.State))
		case min(t.Files, t.FilesTotal, t.Bytes, t.BytesTotal) < 0:
			return errors.New("a task counts from 0 on")
		case !text(t.Reason, maxReason):
			return errors.New("the reason of a task is too long or no text")
		}
	}
	return nil
}

// CheckLabels returns an error for labels that no selector could name.
func CheckLabels(labels map[string]string) error {
	for k, v := range labels {
		if !validKey(k) || !text(v, maxText) || strings.ContainsAny(v, ",") {
			return fmt.Errorf("%.80q: %.80q is not a label: the name has letters, digits and -_./, the value has no comma", k, v)
		}
		if k == NodeLabel {
			return fmt.Errorf("the label %s is the node's own name, and cannot be set", NodeLabel)
		}
	}
	return nil
}

// Reason shortens an error for a report.
func Reason(err error) string {
	s := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(err.Error(), "?"))
	for len(s) > maxReason {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	return s
}

func text(s string, most int) bool {
	return len(s) <= most && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}
