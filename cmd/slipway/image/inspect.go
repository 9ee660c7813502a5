package image

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	gearclient "example.org/slipway/gear/client"

	"example.org/slipway/oci"
)

// inspectFlags are the flags of slipway inspect.
type inspectFlags struct {
	remote     command.ImageFlags
	tree, json bool
	top, tags  int
}

// inspected is the JSON form of a report.
type inspected struct {
	*gearclient.Report
	Tree []gearclient.Node `json:"tree,omitempty"`
}

func inspectCommand() *cobra.Command {
	var f inspectFlags
	cmd := &cobra.Command{
		Use:   "inspect IMAGE [IMAGE...]",
		Short: "Show what an image consists of, and what it shares with others",
		Example: `  slipway inspect 127.0.0.1:5000/team/app:1
  slipway inspect --tree 127.0.0.1:5000/team/app:1
  slipway inspect 127.0.0.1:5000/team/app:1 127.0.0.1:5000/team/app:2`,
		Long: `Show what REGISTRY/REPOSITORY:TAG consists of, layer by layer and as a whole, and which files
it shares with the other images that are named. If none is named, it is compared with other
tags of its repository. No contents of files are fetched. The registry must be one that
slipway serve runs.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runInspect(cmd, &f, args) },
	}
	f.remote.Add(cmd)
	f.remote.AddPlatform(cmd)
	fl := cmd.Flags()
	fl.BoolVar(&f.tree, "tree", false, "also list all entries of the tree with their sizes")
	fl.IntVar(&f.top, "top", 10, "number of largest files and of duplicates to list")
	fl.IntVar(&f.tags, "tags", 10, "number of other tags to compare with, if no other image is named; 0: none")
	fl.BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

func runInspect(cmd *cobra.Command, f *inspectFlags, args []string) error {
	ctx := cmd.Context()
	platform, err := f.remote.Platform()
	if err != nil {
		return err
	}
	var first *gearclient.Report
	var others []gearclient.Other
	for i, arg := range args {
		rep, err := f.inspect(ctx, arg, platform, len(args) == 1)
		if err != nil {
			return err
		}
		if i == 0 {
			first = rep
		} else {
			others = append(others, gearclient.Other{Name: arg, Index: rep.Index()})
		}
	}
	if len(others) > 0 {
		first.CompareAll(others)
	}
	w := cmd.OutOrStdout()
	if f.json {
		out := inspected{Report: first}
		if f.tree {
			out.Tree = slices.Collect(gearclient.Tree(first.Index()))
		}
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(out)
	}
	printInspected(w, first)
	if f.tree {
		printTree(w, first)
	}
	return nil
}

func (f *inspectFlags) inspect(ctx context.Context, arg string, platform *oci.Platform, alone bool) (*gearclient.Report, error) {
	r, err := f.remote.Open(arg)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	img, err := r.Gear.One(ctx, r.Repo, r.Ref, platform)
	if err != nil {
		return nil, err
	}
	rep, err := r.Gear.Inspect(ctx, img, gearclient.InspectOptions{Top: f.top})
	if err == nil && alone && f.tags > 0 {
		err = r.Gear.CompareTags(ctx, rep, img, f.tags)
	}
	return rep, err
}

func printInspected(w io.Writer, r *gearclient.Report) {
	kind := ""
	if r.Gear {
		kind = ", a Gear image"
		if r.Original != "" {
			kind += " of " + string(r.Original)
		}
	}
	fmt.Fprintf(w, "%s for %s%s\n%s\n\n", r.Image, r.Platform, kind, r.Digest)
	for i, l := range r.Layers {
		fmt.Fprintf(w, "layer %d %s, %s stored\n    %s\n", i+1, l.Digest, command.Size(l.Stored), stats(&l.Stats))
	}
	fmt.Fprintf(w, "as a whole, index of %s\n    %s\n", command.Size(r.IndexBytes), stats(&r.Whole))
	if len(r.Duplicates) > 0 {
		fmt.Fprintln(w, "\nsame content at several paths:")
	}
	for _, d := range r.Duplicates {
		more := ""
		const few = 3
		if n := len(d.Paths) - few; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		fmt.Fprintf(w, "    %10s  %d times: %s%s\n", command.Size(d.Size), len(d.Paths), command.Printable(strings.Join(d.Paths[:min(few, len(d.Paths))], ", ")), more)
	}
	if len(r.Largest) > 0 {
		fmt.Fprintln(w, "\nlargest files:")
	}
	for _, l := range r.Largest {
		fmt.Fprintf(w, "    %10s  %s\n", command.Size(l.Size), command.Printable(l.Path))
	}
	if n := len(r.LeftOut); n > 0 {
		fmt.Fprintln(w, "\na mounted tree lacks:")
		for _, l := range r.LeftOut[:min(n, leftOutLines)] {
			fmt.Fprintf(w, "    %s: %s\n", command.Printable(l.Path), command.Printable(l.What))
		}
		if n > leftOutLines {
			fmt.Fprintf(w, "    and %d more (--json lists all)\n", n-leftOutLines)
		}
	}
	if len(r.Shared) > 0 {
		fmt.Fprintln(w, "\nshared with:")
	}
	share := func(s *gearclient.Shared, with string) {
		percent := int64(0)
		if r.Whole.DistinctBytes > 0 {
			percent = s.Bytes * 100 / r.Whole.DistinctBytes
		}
		fmt.Fprintf(w, "    %10s (%3d %%) in %d files  %s\n", command.Size(s.Bytes), percent, s.Files, with)
	}
	for i := range r.Shared {
		share(&r.Shared[i], r.Shared[i].With)
	}
	if r.SharedAny != nil {
		share(r.SharedAny, "any of them")
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "not compared with %s\n", s)
	}
}

// leftOutLines bounds the lines that are printed, because some archivers give every file
// such attributes.
const leftOutLines = 10

func stats(s *gearclient.Stats) string {
	text := fmt.Sprintf("%d directories, %d files of %s", s.Dirs, s.Files, command.Size(s.Bytes))
	for _, n := range []struct {
		count int
		what  string
	}{{s.Symlinks, "symbolic links"}, {s.HardLinks, "hard links"}, {s.Special, "devices, fifos and sockets"}, {s.Whiteouts, "whiteouts"}, {s.Opaque, "opaque directories"}} {
		if n.count > 0 {
			text += fmt.Sprintf(", %d %s", n.count, n.what)
		}
	}
	return text + fmt.Sprintf("; distinct: %d files of %s", s.Distinct, command.Size(s.DistinctBytes))
}

func printTree(w io.Writer, r *gearclient.Report) {
	fmt.Fprintln(w)
	for n := range gearclient.Tree(r.Index()) {
		name := n.Path[strings.LastIndexByte(n.Path, '/')+1:]
		if n.Type == "directory" {
			name += "/"
		}
		if n.Link != "" {
			name += " -> " + n.Link
		}
		fmt.Fprintf(w, "%s %5d:%-5d %10s  %s%s\n", modeText(&n), n.UID, n.GID, command.Size(n.Size), strings.Repeat("  ", n.Depth), command.Printable(name))
	}
}

// modeText formats a mode as ls does.
func modeText(n *gearclient.Node) string {
	kind := map[string]string{"directory": "d", "symlink": "l", "hardlink": "h", "chardev": "c", "blockdev": "b", "fifo": "p", "socket": "s"}[n.Type]
	if kind == "" {
		kind = "-"
	}
	text := []byte(fs.FileMode(n.Mode & 0o777).String()[1:])
	for i, bit := range []struct {
		mask    uint32
		yes, no byte
	}{{0o4000, 's', 'S'}, {0o2000, 's', 'S'}, {0o1000, 't', 'T'}} {
		at := 3*i + 2
		switch {
		case n.Mode&bit.mask == 0:
		case text[at] == 'x':
			text[at] = bit.yes
		default:
			text[at] = bit.no
		}
	}
	return kind + string(text)
}
