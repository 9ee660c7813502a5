package server

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/oci"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/dataroot"
)

func cacheCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "cache",
		Short:   "Manage a running server's cache of blobs",
		Example: `  slipway cache status --config /etc/slipway/config.yml`,
	}
	cmd.AddCommand(cacheStatusCommand(), cacheDropCommand(), cacheWarmCommand())
	return cmd
}

func cacheStatusCommand() *cobra.Command {
	var f command.ServerFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the cache holds and how often it is hit",
		Example: `  slipway cache status --config /etc/slipway/config.yml
  slipway cache status --config /etc/slipway/config.yml --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				st, err := a.CacheStatus(cmd.Context())
				if err != nil {
					return err
				}
				return command.PrintReport(cmd.OutOrStdout(), asJSON, st, func() { printCache(cmd.OutOrStdout(), st) })
			})
		},
	}
	f.Add(cmd, false)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the status as JSON; durations are in nanoseconds")
	return cmd
}

func printCache(w io.Writer, st dataroot.CacheStatus) {
	printTier(w, "memory", st.RAM)
	printTier(w, "disk", st.SSD)
	fmt.Fprintf(w, "%d contents were fetched from the object store or another server, %d requests joined a fetch, %d fetches failed; %d are under way\n",
		st.Fetched, st.Shared, st.Failed, st.Fetching)
	if st.SSD.Limit > 0 {
		left := ""
		if st.Budget >= 0 {
			left = fmt.Sprintf(", %s more may be now", command.Size(st.Budget))
		}
		fmt.Fprintf(w, "%s were written to the disk%s; %d files were damaged\n", command.Size(st.Written), left, st.Damaged)
		if !st.Usable {
			fmt.Fprintln(w, "the disk cannot be used at present; the server's log says why")
		}
	}
	if p := st.Prefetch; p != nil {
		fmt.Fprintf(w, "%d layers of %s were fetched ahead, %.0f %% of those begun were requested, %s were wasted; they served %d of %d requests (%.0f %%)\n",
			p.Fetched, command.Size(p.Bytes), 100*p.Precision(), command.Size(p.WastedBytes), p.Hits, p.Requests, 100*p.Recall())
	}
	if len(st.Servers) > 0 {
		fmt.Fprintln(w, "servers that know each other:", strings.Join(st.Servers, ", "))
	}
}

func printTier(w io.Writer, name string, t dataroot.CacheTier) {
	if t.Limit == 0 {
		fmt.Fprintf(w, "%s: none\n", name)
		return
	}
	share := 0.0
	if n := t.Hits + t.Misses; n > 0 {
		share = 100 * float64(t.Hits) / float64(n)
	}
	fmt.Fprintf(w, "%s: %d contents of %s (%s pinned) of at most %s; %d of %d requests hit (%.1f %%), %d contents were given up\n",
		name, t.Entries, command.Size(t.Bytes), command.Size(t.Pinned), command.Size(t.Limit), t.Hits, t.Hits+t.Misses, share, t.Evictions)
}

func cacheDropCommand() *cobra.Command {
	var f command.ServerFlags
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "drop {--all | DIGEST...}",
		Short: "Drop contents from the cache; they are fetched again when a client requests them",
		Example: `  slipway cache drop --config /etc/slipway/config.yml sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
  slipway cache drop --config /etc/slipway/config.yml --all`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return command.Usagef("name digests, or use --all")
			}
			drop := dataroot.CacheDropArgs{All: all}
			for _, d := range args {
				drop.Digests = append(drop.Digests, oci.Digest(d))
			}
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				rep, err := a.DropCached(cmd.Context(), drop)
				if err != nil {
					return err
				}
				return command.PrintReport(cmd.OutOrStdout(), asJSON, rep, func() { fmt.Fprintf(cmd.OutOrStdout(), "dropped %d contents\n", rep.Dropped) })
			})
		},
	}
	f.Add(cmd, false)
	cmd.Flags().BoolVar(&all, "all", false, "drop everything")
	command.AddJSON(cmd, &asJSON)
	return cmd
}

func cacheWarmCommand() *cobra.Command {
	var f command.ServerFlags
	var warm dataroot.CacheWarmArgs
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "warm IMAGE...",
		Short:   "Fetch the layers of images into the cache",
		Example: `  slipway cache warm --config /etc/slipway/config.yml team/app:1 team/db:16`,
		Long: `Fetch the layers of images, REPOSITORY[:TAG|@DIGEST], into the cache of the server that uses
the data directory, before many clients request them.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			warm.Images = args
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				p := command.NewProgress("warming")
				rep, err := a.WarmCache(cmd.Context(), warm, func(r dataroot.CacheWarmReport) {
					p.Share(r.Bytes, r.BytesTotal, "%d of %d layers", r.Layers, r.LayersTotal)
				})
				p.End()
				if err != nil {
					return err
				}
				return command.PrintReport(cmd.OutOrStdout(), asJSON, rep, func() {
					fmt.Fprintf(cmd.OutOrStdout(), "%d layers of %s in %s; %d were there before, %d are not kept\n",
						rep.Layers, command.Size(rep.Bytes), rep.Took.Round(1e6), rep.Held, rep.NotKept)
				})
			})
		},
	}
	f.Add(cmd, false)
	cmd.Flags().StringVar(&warm.Platform, "platform", "", "only this platform of multi-platform images, OS/ARCHITECTURE[/VARIANT]")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON; durations are in nanoseconds")
	return cmd
}
