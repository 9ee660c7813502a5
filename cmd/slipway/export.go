package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"example.org/slipway/gear/export"
)

func exportCommand() *cobra.Command {
	var f remoteFlags
	var lossy bool
	cmd := &cobra.Command{
		Use:     "export IMAGE DIR",
		Short:   "Write the file tree of an image into a directory",
		Example: `  slipway export 127.0.0.1:5000/team/app:1 tree`,
		Long: `Write the file tree of REGISTRY/REPOSITORY:TAG into a directory, which is made or must be
empty. The image may be a Gear image or any other that the registry has converted. Each
content is fetched once and verified. Owners, devices and most attributes need root.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return runExport(cmd, &f, lossy, args[0], args[1]) },
	}
	f.add(cmd)
	f.addPlatform(cmd)
	cmd.Flags().BoolVar(&lossy, "lossy", false, "go on without owners, devices and attributes that this user or file system does not allow")
	return cmd
}

func runExport(cmd *cobra.Command, f *remoteFlags, lossy bool, image, dir string) error {
	platform, err := f.platform()
	if err != nil {
		return err
	}
	r, err := f.open(image)
	if err != nil {
		return err
	}
	defer r.close()
	ctx := cmd.Context()
	img, err := r.gear.One(ctx, r.repo, r.ref, platform)
	if err != nil {
		return err
	}
	x, err := r.gear.Index(ctx, img)
	r.waiting.end()
	if err != nil {
		return err
	}
	p := newProgress("exporting")
	var last export.Progress
	lost := 0
	o := &export.Options{Progress: func(e export.Progress) {
		last = e
		p.share(e.Fetched, e.ToFetch, "%d of %d files", e.Files, e.TotalFiles)
	}}
	if lossy {
		o.Lost = func(string, string, error) { lost++ }
	}
	err = export.Tree(ctx, x, r.gear.Files(img, x), dir, o)
	p.end()
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "wrote %d entries, %d files of %s (%s fetched) to %s\n", len(x.Entries), last.Files, size(last.Bytes), size(last.Fetched), dir)
	if lost > 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "%d owners, modes, attributes or devices are missing; export as root to have them\n", lost)
	}
	return nil
}
