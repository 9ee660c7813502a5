package erofs

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// Path returns the path of a node of a sound tree as errors show it, for example
// "usr/bin". The path of the root is ".".
func Path(nodes []Node, i int) string {
	if i == 0 {
		return "."
	}
	var segs []string
	for ; i > 0; i = int(nodes[i].Parent) {
		segs = append(segs, nodes[i].Name)
	}
	for l, r := 0, len(segs)-1; l < r; l, r = l+1, r-1 {
		segs[l], segs[r] = segs[r], segs[l]
	}
	return strings.Join(segs, "/")
}

// Check returns an error unless the nodes are a tree and each can be in an image. Write
// makes the same checks. Check is for callers that lay trees out in another way. It uses
// about 12 bytes of memory for each node. Errors: *[Error].
func Check(nodes []Node) error {
	if err := check(nodes); err != nil {
		return err
	}
	p := &plan{nodes: nodes}
	return p.sortChildren()
}

// check is like Check, without the search for duplicate names, which the plan finds as it
// sorts.
func check(nodes []Node) error {
	switch {
	case len(nodes) == 0:
		return errors.New("a tree without a root")
	case len(nodes) > math.MaxInt32:
		return fmt.Errorf("a tree of %d nodes is too large", len(nodes))
	case nodes[0].Link != 0 || nodes[0].Mode&TypeMask != Dir:
		return &Error{".", errors.New("is the root but no directory")}
	}
	for i := range nodes {
		if i > 0 {
			if err := checkPlace(nodes, i); err != nil {
				return err
			}
		}
		var err error
		if nodes[i].Link != 0 {
			err = checkLink(nodes, i)
		} else {
			err = checkNode(&nodes[i])
		}
		if err != nil {
			return &Error{Path(nodes, i), err}
		}
	}
	return nil
}

// checkPlace checks that a node has a valid name and lies in an earlier directory, so
// that there are no cycles.
func checkPlace(nodes []Node, i int) error {
	n := &nodes[i]
	if n.Parent < 0 || int(n.Parent) >= i {
		return &Error{n.Name, fmt.Errorf("is node %d and lies in node %d, which is not before it", i, n.Parent)}
	}
	parent := &nodes[n.Parent]
	switch {
	case parent.Link != 0 || parent.Mode&TypeMask != Dir:
		return &Error{Path(nodes, i), errors.New("has a parent that is not a directory")}
	case n.Name == "" || n.Name == "." || n.Name == ".." || strings.ContainsAny(n.Name, "/\x00"):
		return &Error{Path(nodes, i), errors.New("has a name that no file can have")}
	case len(n.Name) > MaxName:
		return &Error{Path(nodes, i), fmt.Errorf("has a name of %d bytes; %d are possible", len(n.Name), MaxName)}
	}
	return nil
}

func checkLink(nodes []Node, i int) error {
	to := nodes[i].Link
	if to < 0 || int(to) >= i {
		return fmt.Errorf("is a further name of node %d, which is not before it", to)
	}
	if nodes[to].Link != 0 || nodes[to].Mode&TypeMask == Dir {
		return fmt.Errorf("is a further name of %q, which is a directory or a further name itself", Path(nodes, int(to)))
	}
	return nil
}

func checkNode(n *Node) error {
	switch n.Mode & TypeMask {
	case File:
		if n.Size < 0 || n.Size > MaxSize {
			return fmt.Errorf("has a size of %d bytes; %d are possible", n.Size, int64(MaxSize))
		}
	case Symlink:
		switch {
		case n.Target == "" || strings.IndexByte(n.Target, 0) >= 0:
			return errors.New("has a link target that is empty or has a NUL")
		case len(n.Target) > MaxTarget:
			return fmt.Errorf("has a link target of %d bytes; %d are possible", len(n.Target), MaxTarget)
		}
	case Char, Block:
		if n.Major >= 1<<12 || n.Minor >= 1<<20 {
			return fmt.Errorf("is device %d:%d; the greatest is 4095:1048575", n.Major, n.Minor)
		}
	case Dir, Fifo, Socket:
	default:
		return fmt.Errorf("has mode %#o, which has no known type", n.Mode)
	}
	switch {
	case n.Mode&^TypeMask > 0o7777:
		return fmt.Errorf("has mode %#o, which has unknown bits", n.Mode)
	case n.Nsec >= 1e9:
		return fmt.Errorf("has a time of last change with %d ns", n.Nsec)
	}
	return checkXattrs(n)
}

func checkXattrs(n *Node) error {
	size := 0
	for i, x := range n.Xattrs {
		_, rest, ok := xattrPrefix(x.Name)
		switch {
		case !ok:
			return fmt.Errorf("has attribute %q, which an image cannot hold", x.Name)
		case len(x.Name) > MaxName || strings.IndexByte(x.Name, 0) >= 0:
			return fmt.Errorf("has attribute %.300q, whose name is longer than %d bytes or has a NUL", x.Name, MaxName)
		case len(x.Value) > MaxXattr:
			return fmt.Errorf("has attribute %q of %d bytes; %d are possible", x.Name, len(x.Value), MaxXattr)
		}
		if err := checkOwner(n, x.Name); err != nil {
			return err
		}
		// Nodes have few attributes, so comparing all pairs is fastest. A longer list is
		// sorted first.
		if len(n.Xattrs) <= 8 {
			for _, other := range n.Xattrs[:i] {
				if other.Name == x.Name {
					return fmt.Errorf("has attribute %q twice", x.Name)
				}
			}
		}
		size += xattrEntry(rest, x.Value)
	}
	if len(n.Xattrs) > 8 {
		xs := sortedXattrs(n.Xattrs)
		for i := range xs[1:] {
			if xs[i].Name == xs[i+1].Name {
				return fmt.Errorf("has attribute %q twice", xs[i].Name)
			}
		}
	}
	if size > maxXattrs {
		return fmt.Errorf("has attributes of %d bytes; %d are possible", size, maxXattrs)
	}
	return nil
}

// checkOwner refuses attributes that Linux does not allow on a file of that type: a
// listing would show them and reading them would fail.
func checkOwner(n *Node, name string) error {
	t := n.Mode & TypeMask
	switch {
	case strings.HasPrefix(name, "user.") && t != File && t != Dir,
		name == aclAccess && t == Symlink,
		name == aclDefault && t != Dir:
		return fmt.Errorf("has attribute %q, which its type of file cannot have", name)
	}
	return nil
}
