package image

import (
	"fmt"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/gear/export"
)

func exportCommand() *cobra.Command {
	var f command.ImageFlags
	var lossy bool
	cmd := &cobra.Command{
		Use:     "export IMAGE DIR",
		Short:   "Write the file tree of an image into a directory",
		Example: `  slipway export 127.0.0.1:5000/team/app:1 tree`,
		Long: `Write the file tree of REGISTRY/REPOSITORY:TAG into a directory, which must be empty or not
exist yet. The image may be a Gear image or any other image that the registry has converted.
Each content is fetched once and verified. Writing owners, devices and most attributes needs
root.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return runExport(cmd, &f, lossy, args[0], args[1]) },
	}
	f.Add(cmd)
	f.AddPlatform(cmd)
	cmd.Flags().BoolVar(&lossy, "lossy", false, "continue without owners, devices and attributes that this user or file system does not allow")
	return cmd
}

func runExport(cmd *cobra.Command, f *command.ImageFlags, lossy bool, image, dir string) error {
	platform, err := f.Platform()
	if err != nil {
		return err
	}
	r, err := f.Open(image)
	if err != nil {
		return err
	}
	defer r.Close()
	ctx := cmd.Context()
	img, err := r.Gear.One(ctx, r.Repo, r.Ref, platform)
	if err != nil {
		return err
	}
	x, err := r.Gear.Index(ctx, img)
	r.Waiting.End()
	if err != nil {
		return err
	}
	p := command.NewProgress("exporting")
	var last export.Progress
	lost := 0
	o := &export.Options{Progress: func(e export.Progress) {
		last = e
		p.Share(e.Fetched, e.ToFetch, "%d of %d files", e.Files, e.TotalFiles)
	}}
	if lossy {
		o.Lost = func(string, string, error) { lost++ }
	}
	err = export.Tree(ctx, x, r.Gear.Files(img, x), dir, o)
	p.End()
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "wrote %d entries, %d files of %s (%s fetched) to %s\n", len(x.Entries), last.Files, command.Size(last.Bytes), command.Size(last.Fetched), dir)
	if lost > 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "%d owners, modes, attributes or devices are missing; export as root to have them\n", lost)
	}
	return nil
}
