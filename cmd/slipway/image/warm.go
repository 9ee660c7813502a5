package image

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/warm"
)

// warmFlags are the flags of slipway warm.
type warmFlags struct {
	command.RegistryFlags
	nodes                                string
	profileOnly, all, status, cancel, on bool
	lasts, wait                          time.Duration
	asJSON                               bool
}

func warmCommand() *cobra.Command {
	var f warmFlags
	cmd := &cobra.Command{
		Use:   "warm {IMAGE | --status REGISTRY [ORDER] | --cancel REGISTRY ORDER}",
		Short: "Order nodes to fetch an image before they start it",
		Long: `Get an image ready before a roll-out. The registry always takes part: it fetches the image from its
upstream if the repository is a mirror, and into its cache if it has one. With --nodes, the nodes
that the selector selects fetch the image too. They ask the registry for orders every few seconds,
each with its own credentials, and fetch in the background, within the limits of their
configuration. By default they fetch the files that containers open when they start; --all fetches
all files.

A selector is a list of conditions on the labels of nodes (node.labels of the agent), separated by
commas; all of them must be met: zone=a, zone!=a, gpu (the node has such a label), !gpu (it has
none). The label name is the node's name, and arch its architecture. In a value, * stands for any
characters and ? for one. An empty selector selects all nodes.

The order holds for the time in --for, also for nodes that appear later, and nodes keep the image
for that time. With --wait, the command ends when the registry and all nodes have ended, and fails
if one of them failed.

You need the right to pull the image, and the action admin.`,
		Example: `  slipway warm registry.example.com/team/app:2 --nodes zone=eu-1a --wait 10m
  slipway warm registry.example.com/team/app:2 --nodes 'name=gpu-*' --all --for 12h
  slipway warm mirror.example.com/docker.io/library/redis:8
  slipway warm --status registry.example.com --json
  slipway warm --cancel registry.example.com 4qzjc3v5x2ab`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.on = cmd.Flags().Changed("nodes")
			if err := f.check(args); err != nil {
				return err
			}
			if f.status || f.cancel {
				return f.look(cmd, args)
			}
			return f.order(cmd, args[0])
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.nodes, "nodes", "", "selector of the nodes, such as zone=a,!gpu; an empty one selects all (default: no nodes, only the registry)")
	fl.BoolVar(&f.profileOnly, "profile-only", false, "fetch the files that containers open when they start (the default)")
	fl.BoolVar(&f.all, "all", false, "fetch all files of the image")
	fl.DurationVar(&f.lasts, "for", 0, "how long the order holds (default 6h)")
	fl.DurationVar(&f.wait, "wait", 0, "longest time to wait for the registry and the nodes (default: do not wait)")
	fl.BoolVar(&f.status, "status", false, "show the orders of a registry, or one order with the progress of each node")
	fl.BoolVar(&f.cancel, "cancel", false, "end an order; nodes keep what they have fetched until they need the space")
	f.AddTo(fl, "the registry", "it")
	command.AddJSON(cmd, &f.asJSON)
	return cmd
}

func (f *warmFlags) check(args []string) error {
	switch {
	case f.status && f.cancel:
		return command.Usagef("--status and --cancel exclude each other")
	case f.profileOnly && f.all:
		return command.Usagef("--profile-only and --all exclude each other")
	case (f.status || f.cancel) && (f.on || f.all || f.profileOnly || f.lasts != 0 || f.wait != 0):
		return command.Usagef("--status and --cancel take a registry and an order, and no flags of a new order")
	case f.cancel && len(args) != 2:
		return command.Usagef("name a registry and the order to cancel; --status lists orders")
	case !f.status && !f.cancel && len(args) != 1:
		return command.Usagef("name one image")
	case f.lasts < 0 || f.wait < 0 || f.lasts > 0 && f.lasts < time.Second:
		return command.Usagef("--for is at least a second, and --wait not negative")
	}
	_, err := warm.ParseSelector(f.nodes)
	if err != nil {
		return command.Usagef("--nodes: %v", err)
	}
	return nil
}

// order orders an image, and waits for it if that was asked for.
func (f *warmFlags) order(cmd *cobra.Command, arg string) error {
	c, images, err := f.Open(arg)
	if err != nil {
		return err
	}
	defer c.Close()
	if len(images) == 0 {
		return command.Usagef("%s is a whole registry; name an image, %s/REPOSITORY:TAG", arg, arg)
	}
	q := &warm.Request{All: f.all, Seconds: int64(f.lasts / time.Second)}
	repo := images[0].From
	if refs := images[0].References; len(refs) > 0 {
		q.Reference = refs[0]
	}
	if strings.HasPrefix(q.Reference, "sha256:") { // a tag beside a digest adds nothing
		repo, _, _ = strings.Cut(repo, ":")
	}
	if f.on {
		q.Nodes = &f.nodes
	}
	o, err := warm.Begin(cmd.Context(), client.Extensions{Client: c}, repo, q)
	if err != nil {
		return err
	}
	var failed error
	if f.wait > 0 {
		if o, failed, err = f.await(cmd.Context(), client.Extensions{Client: c}, o); err != nil {
			return err
		}
	}
	w := cmd.OutOrStdout()
	if err := command.PrintReport(w, f.asJSON, o, func() { printOrder(w, o) }); err != nil {
		return err
	}
	return failed
}

// await waits until an order has ended. failed says why it is not done.
func (f *warmFlags) await(ctx context.Context, c warm.Registry, o warm.Order) (_ warm.Order, failed, err error) {
	p := command.NewProgress("warming")
	defer p.End()
	ctx, cancel := context.WithTimeout(ctx, f.wait)
	defer cancel()
	for !o.State.Ended() {
		done, total := o.Registry.Bytes, o.Registry.BytesTotal
		for i := range o.Progress {
			done, total = done+o.Progress[i].Bytes, total+o.Progress[i].BytesTotal
		}
		p.Share(done, total, "%d of %d nodes are done", o.Counts[warm.Done], len(o.Progress))
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return o, fmt.Errorf("order %s is not done after %s: %s", o.ID, f.wait, nodesOf(&o)), nil
		}
		now, err := warm.Get(ctx, c, o.ID)
		switch {
		case err == nil:
			o = now
		case ctx.Err() == nil:
			return o, nil, err
		}
	}
	if o.State != warm.Done {
		return o, fmt.Errorf("order %s is %s: %s", o.ID, o.State, nodesOf(&o)), nil
	}
	return o, nil, nil
}

// look shows orders, or cancels one.
func (f *warmFlags) look(cmd *cobra.Command, args []string) error {
	c, images, err := f.Open(args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	if len(images) > 0 {
		return command.Usagef("%s is an image; name the registry alone", args[0])
	}
	w := cmd.OutOrStdout()
	if len(args) == 1 {
		list, err := warm.List(cmd.Context(), client.Extensions{Client: c})
		if err != nil {
			return err
		}
		return command.PrintReport(w, f.asJSON, map[string]any{"orders": list}, func() { printOrders(w, list) })
	}
	ask := warm.Get
	if f.cancel {
		ask = warm.Cancel
	}
	o, err := ask(cmd.Context(), client.Extensions{Client: c}, args[1])
	if err != nil {
		return err
	}
	return command.PrintReport(w, f.asJSON, o, func() { printOrder(w, o) })
}

// nodesOf says how many nodes are how far.
func nodesOf(o *warm.Order) string {
	if o.Nodes == nil {
		return "only the registry itself"
	}
	if len(o.Progress) == 0 && len(o.Counts) == 0 {
		if o.Matching == 0 {
			return "no node that asks now has these labels"
		}
		return fmt.Sprintf("%d nodes have these labels, and have not asked yet or may not pull the image", o.Matching)
	}
	var parts []string
	for _, s := range []warm.State{warm.Done, warm.Running, warm.Waiting, warm.Failed} {
		if n := o.Counts[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	return "nodes: " + strings.Join(parts, ", ")
}

func printOrders(w io.Writer, list []warm.Order) {
	if len(list) == 0 {
		fmt.Fprintln(w, "there are no orders")
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ORDER\tIMAGE\tSTATE\tUNTIL\tNODES")
	for i := range list {
		o := &list[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", command.Printable(o.ID), command.Printable(imageOf(o)), o.State, o.Expires.Local().Format(time.DateTime), nodesOf(o))
	}
	t.Flush()
}

func imageOf(o *warm.Order) string {
	if strings.Contains(o.Reference, ":") {
		return o.Repository + "@" + o.Reference
	}
	return o.Repository + ":" + o.Reference
}

func printOrder(w io.Writer, o warm.Order) {
	fmt.Fprintf(w, "order %s: %s (%.19s), %s until %s\n", command.Printable(o.ID), command.Printable(imageOf(&o)), command.Printable(string(o.Digest)), o.State, o.Expires.Local().Format(time.DateTime))
	fmt.Fprintln(w, nodesOf(&o))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tSTATE\tFILES\tBYTES\tREASON")
	printProgress(t, "the registry", o.Registry, false)
	for i := range o.Progress {
		n := &o.Progress[i]
		printProgress(t, n.Node, n.Progress, n.Away)
	}
	t.Flush()
}

func printProgress(w io.Writer, name string, p warm.Progress, away bool) {
	state := string(p.State)
	if away {
		state += ", away"
	}
	fmt.Fprintf(w, "%s\t%s\t%d of %d\t%s of %s\t%s\n", command.Printable(name), state, p.Files, p.FilesTotal, command.Size(p.Bytes), command.Size(p.BytesTotal), command.Printable(p.Reason))
}
