package image

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/serve/admin"
)

// convertFlags are the flags of slipway convert.
type convertFlags struct {
	command.ServerFlags
	remote                  command.ImageFlags
	tag                     string
	allPlatforms, all, json bool
	again                   bool
}

func convertCommand() *cobra.Command {
	var f convertFlags
	cmd := &cobra.Command{
		Use:   "convert {IMAGE | --all}",
		Short: "Make a Gear image from an image in a registry, or convert all layers of a data directory",
		Example: `  slipway convert 127.0.0.1:5000/team/app:1 --tag 1-gear
  slipway convert 127.0.0.1:5000/team/app:1 --platform linux/arm64
  slipway convert --all --root /var/lib/slipway`,
		Long: `Make a Gear image from REGISTRY/REPOSITORY:TAG and push it to the same repository, as
TAG-gear. The registry must be one that slipway serve runs. It has the files already, so only
the index is sent. The same image always becomes the same Gear image, with the same digest.

With --all, convert all layers of a data directory that are not converted yet. A server may
use the directory meanwhile. A running server converts by itself what is pushed, unless
gear.convert in its configuration is off. Exit status 1 means that some layers cannot be
converted.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.all == (len(args) == 1):
				return command.Usagef("name an image, or use --all")
			case f.all:
				return convertAll(cmd, &f)
			}
			return convertImage(cmd, &f, args[0])
		},
	}
	f.Add(cmd, false)
	f.remote.Add(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.tag, "tag", "", "tag of the Gear image (default: the image's tag with -gear appended)")
	fl.StringArrayVar(&f.remote.Platforms, "platform", nil, "OS/ARCHITECTURE[/VARIANT] to convert, may be repeated (default: Linux on this machine's architecture)")
	fl.BoolVar(&f.allPlatforms, "all-platforms", false, "convert the images for all platforms, and push an index of them")
	fl.BoolVar(&f.all, "all", false, "convert all layers of the data directory")
	fl.BoolVar(&f.again, "again", false, "with --all: also convert layers whose conversion has failed before")
	fl.BoolVar(&f.json, "json", false, "print the report as JSON; durations are in nanoseconds")
	return cmd
}

func convertImage(cmd *cobra.Command, f *convertFlags, arg string) error {
	sel, err := f.remote.Selection(f.allPlatforms)
	if err != nil {
		return err
	}
	r, err := f.remote.Open(arg)
	if err != nil {
		return err
	}
	defer r.Close()
	out, err := r.Gear.Convert(cmd.Context(), r.Repo, r.Ref, gearclient.ConvertOptions{Tag: f.tag, Select: sel})
	r.Waiting.End()
	if err != nil {
		return err
	}
	return command.PrintReport(cmd.OutOrStdout(), f.json, out, func() {
		for _, p := range out.Images {
			printPushed(cmd.OutOrStdout(), p)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s/%s:%s is %s\n", r.Host, out.Repo, out.Tag, out.Digest)
	})
}

func printPushed(w io.Writer, p gearclient.Pushed) {
	fmt.Fprintf(w, "%s: Gear image of %d entries, %d files of %s, in a layer of %s\n", p.Platform, p.Entries, p.Files, command.Size(p.Bytes), command.Size(p.LayerBytes))
}

func convertAll(cmd *cobra.Command, f *convertFlags) error {
	return command.WithAdmin(cmd, &f.ServerFlags, false, func(a *admin.Admin) error {
		p := command.NewProgress("converting")
		rep, err := a.Convert(cmd.Context(), admin.ConvertArgs{Again: f.again}, func(r admin.ConvertReport) {
			doing := ""
			if len(r.Active) > 0 {
				l := r.Active[0]
				doing = fmt.Sprintf("; %.19s: %s of %s", l.Layer, command.Size(l.Bytes), command.Size(l.Size))
			}
			p.Show("%d layers converted, %d wait, %d failed%s", r.Converted, r.Waiting, r.Failed, doing)
		})
		p.End()
		if err != nil {
			return err
		}
		err = command.PrintReport(cmd.OutOrStdout(), f.json, rep, func() {
			printFailures(cmd.OutOrStdout(), rep.Failures)
			fmt.Fprintf(cmd.OutOrStdout(), "%d layers had to be converted, %d were, %d cannot be, in %s\n", rep.Queued, rep.Converted, rep.Failed, rep.Took.Round(1e6))
		})
		if err == nil && rep.Failed > 0 {
			err = fmt.Errorf("%d layers cannot be converted, for the reasons above; their images can still be pulled (--again tries once more)", rep.Failed)
		}
		return err
	})
}
