package workload

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/workload/load"
)

func loadPushCommand() *cobra.Command {
	var f loadFlags
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "push URL",
		Short: "Only push the images that slipway load pulls",
		Long: `Make the images, and push those that the registry does not have. slipway load --in-place with
the same options pulls them.`,
		Example: `  slipway load push http://localhost:5001 --images 1500
  slipway load http://localhost:8080 --images 1500 --in-place --prefix docker.io/ --prune delete`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.iteration, f.tally = 1, 1
			if err := f.complete(cmd, args[0]); err != nil {
				return err
			}
			if dryRun {
				p, err := load.DryRun(cmd.Context(), &f.o)
				if err == nil {
					fmt.Fprintf(cmd.OutOrStdout(), "%d images of %s would be pushed, as far as they are not there\n", p.Images, command.Size(p.Bytes))
				}
				return err
			}
			view := newLoadView()
			if !f.quiet {
				f.o.Progress = view.Show
			}
			p, err := load.PushSet(cmd.Context(), &f.o)
			view.End()
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "pushed %d images of %s in %.1f s; %d were there\n", p.Images, command.Size(p.Bytes), p.Seconds, p.Present)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say how much would be pushed, and ask the registry nothing")
	f.addSet(cmd.Flags())
	f.target.add(cmd.Flags(), "", "the registry")
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "no progress")
	return cmd
}

// formFlags say where a report is written and in which format.
type formFlags struct{ format, out string }

func (f *formFlags) add(cmd *cobra.Command) {
	command.AddForm(cmd.Flags(), &f.format, "format", "json", "html")
	command.AddPath(cmd.Flags(), &f.out, "out", "file to write (default: standard output)")
}

func (f *formFlags) write(cmd *cobra.Command, r writable) error {
	return output(cmd, f.out, func(w io.Writer) error { return writeForm(w, r, f.format) })
}

func loadReportCommand() *cobra.Command {
	var form formFlags
	cmd := &cobra.Command{
		Use:     "report RESULT",
		Short:   "Show what a run measured, as text, JSON or a page",
		Example: `  slipway load report slipway.json --format html -o slipway.html`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			results, err := readLoads(args)
			if err != nil {
				return err
			}
			return form.write(cmd, results[0])
		},
	}
	form.add(cmd)
	return cmd
}

func loadCompareCommand() *cobra.Command {
	var form formFlags
	cmd := &cobra.Command{
		Use:     "compare RESULT RESULT [RESULT...]",
		Short:   "Compare results side by side, with their rates over pullers in one picture",
		Example: `  slipway load compare slipway.json ociregistry.json --format html -o compared.html`,
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			results, err := readLoads(args)
			if err != nil {
				return err
			}
			c, err := load.Compare(results)
			if err != nil {
				return err
			}
			return form.write(cmd, c)
		},
	}
	form.add(cmd)
	return cmd
}
