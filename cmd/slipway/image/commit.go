package image

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	gearclient "example.org/slipway/gear/client"
)

// commitFlags are the flags of slipway commit.
type commitFlags struct {
	remote command.ImageFlags
	layers bool
	json   bool
	o      gearclient.CommitOptions
}

func commitCommand() *cobra.Command {
	var f commitFlags
	cmd := &cobra.Command{
		Use:   "commit UPPER-DIR BASE-IMAGE {NEW-TAG | NEW-IMAGE}",
		Short: "Make a new image from a base image and an overlay's upper directory",
		Example: `  slipway commit /var/tmp/changes 127.0.0.1:5000/team/app:1 2
  slipway commit /var/tmp/changes 127.0.0.1:5000/team/app:1 127.0.0.1:5000/team/other:1`,
		Long: `Make a Gear image from a base image and the upper directory of an overlay that was mounted on
it. Push it to the base image's repository, or to another one of the same registry. Only the
files that the repository lacks are sent.

With --layers, make an ordinary image instead, which runs anywhere: the base image's layers
and one more. First stop whatever writes to the directory. Reading it needs root.`,
		Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error { return runCommit(cmd, &f, args[0], args[1], args[2]) },
	}
	f.remote.Add(cmd)
	f.remote.AddPlatform(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.o.Upper.Merged, "merged", "", "mount point of the overlay, needed if it was mounted with redirect_dir or metacopy")
	fl.BoolVar(&f.o.Upper.UserXattr, "userxattr", false, "the overlay was mounted with userxattr")
	fl.BoolVar(&f.layers, "layers", false, "make an ordinary image: the base image's layers and a new one")
	fl.StringVar(&f.o.Author, "author", "", "author to record in the image")
	fl.StringVar(&f.o.Comment, "message", "", "comment to record in the image's history")
	fl.BoolVar(&f.json, "json", false, "print what was pushed as JSON")
	return cmd
}

// target parses the destination of a new image: a tag, or an image of the same registry.
func (f *commitFlags) target(base *command.Image, arg string) error {
	if !strings.ContainsAny(arg, "/:@") {
		f.o.Repo, f.o.Tag = base.Repo, arg
		return nil
	}
	r, err := f.remote.Open(arg)
	if err != nil {
		return err
	}
	defer r.Close()
	if r.Reg.URL() != base.Reg.URL() {
		return fmt.Errorf("%s is in another registry than the base image; commit to %s and copy it from there (slipway import)", arg, base.Host)
	}
	f.o.Repo, f.o.Tag = r.Repo, r.Ref
	return nil
}

func runCommit(cmd *cobra.Command, f *commitFlags, dir, image, to string) error {
	platform, err := f.remote.Platform()
	if err != nil {
		return err
	}
	r, err := f.remote.Open(image)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := f.target(r, to); err != nil {
		return err
	}
	base, err := r.Gear.One(cmd.Context(), r.Repo, r.Ref, platform)
	if err != nil {
		return err
	}
	p := command.NewProgress("uploading")
	var files int
	var bytes int64
	f.o.Progress = func(n int, b int64) {
		files, bytes = n, b
		p.Show("%d files, %s", n, command.Size(b))
	}
	f.o.Upper.Skipped = func(path, why string) { slog.Warn("left out of the image", "path", path, "reason", why) }
	commit := func(ctx context.Context) (gearclient.Pushed, error) {
		if f.layers {
			return r.Gear.CommitLayer(ctx, dir, base, f.o)
		}
		return r.Gear.Commit(ctx, dir, base, f.o)
	}
	out, err := commit(cmd.Context())
	p.End()
	r.Waiting.End()
	if err != nil {
		return err
	}
	return command.PrintReport(cmd.OutOrStdout(), f.json, out, func() {
		w := cmd.OutOrStdout()
		if f.layers {
			fmt.Fprintf(w, "%s: %s and a layer of %s\n", out.Platform, base.Name(), command.Size(out.LayerBytes))
		} else {
			printPushed(w, out)
			fmt.Fprintf(w, "sent %d files of %s\n", files, command.Size(bytes))
		}
		fmt.Fprintf(w, "%s/%s:%s is %s\n", r.Host, out.Repo, out.Tag, out.Digest)
	})
}
