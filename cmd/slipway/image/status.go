package image

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/gear/recipes"
	gearregistry "example.org/slipway/gear/service"
	"example.org/slipway/registry/quota"
	"example.org/slipway/serve/admin"
	volumeregistry "example.org/slipway/volume/service"
)

func statusCommand() *cobra.Command {
	var f command.ServerFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of the conversion to Gear, of dropped layers, of quotas, and of the building of volumes",
		Example: `  slipway status --root /var/lib/slipway
  slipway status --config /etc/slipway/config.yml --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				st, err := a.GearStatus(cmd.Context())
				if err != nil {
					return err
				}
				rc, err := a.Recipes(cmd.Context())
				if err != nil {
					return err
				}
				both := statusReport{Status: st, Recipes: rc}
				if both.Quotas, err = a.Quotas(cmd.Context()); err != nil {
					return err
				}
				if a.HasVolumes() {
					v, err := a.Volumes(cmd.Context(), admin.VolumesArgs{})
					if err != nil {
						return err
					}
					both.Volumes = &v.Status
				}
				return command.PrintReport(cmd.OutOrStdout(), asJSON, both, func() {
					printStatus(cmd.OutOrStdout(), st)
					printRecipeStatus(cmd, &rc)
					printQuotas(cmd.OutOrStdout(), both.Quotas)
					if both.Volumes != nil {
						printVolumeStatus(cmd.OutOrStdout(), both.Volumes)
					}
				})
			})
		},
	}
	f.Add(cmd, false)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the state as JSON; durations are in nanoseconds")
	return cmd
}

// statusReport is the state as JSON.
type statusReport struct {
	gearregistry.Status
	// Recipes is the state of dropped layers.
	Recipes recipes.Status `json:"recipes"`
	// Volumes is nil if images are not built as volumes.
	Volumes *volumeregistry.Status `json:"volumes,omitempty"`
	// Quotas is empty without quotas.
	Quotas []quota.Status `json:"quotas,omitempty"`
}

func printQuotas(w io.Writer, list []quota.Status) {
	for _, q := range list {
		name := strings.Join(q.Repositories, " ")
		if name == "" {
			name = "all repositories"
		}
		var parts []string
		if q.BytesLimit > 0 {
			parts = append(parts, fmt.Sprintf("%s of %s", command.Size(q.Bytes), command.Size(q.BytesLimit)))
		}
		if q.TagsLimit > 0 {
			parts = append(parts, fmt.Sprintf("%d of %d tags", q.Tags, q.TagsLimit))
		}
		note := map[string]string{"warning": "; nearly reached", "reached": "; reached, pushes are refused"}[q.State]
		fmt.Fprintf(w, "quota of %s: %s%s\n", name, strings.Join(parts, ", "), note)
	}
}

func printStatus(w io.Writer, st gearregistry.Status) {
	fmt.Fprintf(w, "%d layers are converted; they hold %d files, stored in %s\n", st.Layers, st.Files, command.Size(st.StoredBytes))
	fmt.Fprintf(w, "%d packs of %s\n", st.Packs, command.Size(st.PackBytes))
	fmt.Fprintf(w, "%d layers wait, %d are being converted, %d have failed\n", st.Waiting, len(st.Active), st.Failed)
	for _, a := range st.Active {
		of := ""
		if a.Size > 0 {
			of = fmt.Sprintf(" of %s (%d %%)", command.Size(a.Size), a.Bytes*100/a.Size)
		}
		fmt.Fprintf(w, "    %s: %s%s in %s\n", a.Layer, command.Size(a.Bytes), of, a.Took.Round(1e8))
	}
	printFailures(w, st.Failures)
}

func printFailures(w io.Writer, list []gearregistry.Failure) {
	for _, l := range list {
		fmt.Fprintf(w, "failed: %s, %d attempts: %s\n", l.Layer, l.Attempts, l.Reason)
	}
}

func settleCommand() *cobra.Command {
	var f command.ServerFlags
	var args admin.SettleArgs
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "settle",
		Short:   "Rewrite packs of Gear files so that they take less space",
		Example: `  slipway settle --root /var/lib/slipway`,
		Long: `Rewrite packs of Gear files, which were stored quickly, into dense ones, and free the space of
files that nothing needs. A running server does this by itself; if one uses the data
directory, the command asks it to do so now. Replaced packs are deleted some minutes later,
when nobody reads them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return command.WithAdmin(cmd, &f, false, func(a *admin.Admin) error {
				rep, err := a.Settle(cmd.Context(), args)
				if err != nil {
					return err
				}
				return command.PrintReport(cmd.OutOrStdout(), asJSON, rep, func() {
					fmt.Fprintf(cmd.OutOrStdout(), "%d packs of %s are now %d of %s, in %s\n",
						rep.PacksBefore, command.Size(rep.PackBytesBefore), rep.Packs, command.Size(rep.PackBytes), rep.Took.Round(1e6))
				})
			})
		},
	}
	f.Add(cmd, false)
	cmd.Flags().BoolVar(&args.All, "all", false, "also rewrite files that do not fill a pack yet")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON; durations are in nanoseconds")
	return cmd
}

// printRecipeStatus prints which layers are dropped, if any are or soon will be.
func printRecipeStatus(cmd *cobra.Command, st *recipes.Status) {
	if st.Layers+st.Waiting+st.Refused == 0 && st.Pass == nil {
		return
	}
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "%d layers of %s are dropped; their recipes take %s\n", st.Layers, command.Size(st.Bytes), command.Size(st.RecipeBytes))
	fmt.Fprintf(w, "%d layers of %s have a recipe and wait to be dropped, %d of %s stay as they are\n",
		st.Waiting, command.Size(st.WaitingBytes), st.Refused, command.Size(st.RefusedBytes))
	if p := st.Pass; p != nil {
		fmt.Fprintf(w, "a pass since %s has made %d recipes and dropped %d layers of %s so far\n", p.Since.UTC().Format(time.RFC3339), p.Made, p.Dropped, command.Size(p.DroppedBytes))
	}
	if st.Unreadable == 0 {
		return
	}
	fmt.Fprintf(w, "ALARM: %d packs that dropped layers need cannot be read:\n", st.Unreadable)
	for _, p := range st.UnreadablePacks {
		fmt.Fprintf(w, "    %s: %s\n", p.Key, p.Damage)
	}
}
