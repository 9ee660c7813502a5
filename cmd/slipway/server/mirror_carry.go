package server

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/oci"
	"example.org/slipway/registry/mirror"
	"example.org/slipway/registry/mirror/airgap"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/mirrors"
)

func mirrorExportCommand() *cobra.Command {
	var f mirrorFlags
	var export mirrors.ExportArgs
	cmd := &cobra.Command{
		Use:   "export FILE [REF...]",
		Short: "Write mirrored images into a file for a server without a network",
		Example: `  slipway mirror export --config /etc/slipway/config.yml mirrors.tar
  slipway mirror export --config /etc/slipway/config.yml nginx.tar docker.io/library/nginx:1.27`,
		Long: `Write mirrored images, REPOSITORY[:TAG|@DIGEST] with the upstream's name, into a tar file in
the layout of the OCI image specification: all of them, those of a pattern, or those that are
named. Signatures and other referrers go with them. Of an index, those platforms are written
that the mirror has. The same images give the same file. If a server uses the data directory,
the server writes the file.

An image that is incomplete or cannot be read is left out and named; the others are written.
Exit status 1 means that there was such an image; slipway mirror load fetches what is missing.
If no image is complete, no file is written.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) > 1 && export.Pattern != "" {
				return command.Usagef("name images, or use --pattern")
			}
			if export.Path, err = filepath.Abs(args[0]); err != nil {
				return err
			}
			export.Images = args[1:]
			return f.run(cmd, false, func(a *admin.Admin) (any, func(io.Writer), error) {
				p := command.NewProgress("exporting")
				rep, err := a.ExportMirrors(cmd.Context(), export, func(r airgap.Progress) {
					p.Share(r.Bytes, r.BytesTotal, "%d blobs", r.Blobs)
				})
				p.End()
				if rep.Images == 0 && len(rep.LeftOut) == 0 {
					return nil, nil, err
				}
				return rep, func(w io.Writer) {
					for _, l := range rep.LeftOut {
						fmt.Fprintf(w, "left out: %s: %s\n", l.Image, l.Reason)
					}
					if rep.Images == 0 {
						return
					}
					fmt.Fprintf(w, "wrote %d images with %d manifests and %d blobs of %s; %d parts are not here and left out\n",
						rep.Images, rep.Manifests, rep.Blobs, command.Size(rep.Bytes), rep.Absent)
				}, err
			})
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&export.Pattern, "pattern", "", "images of repositories that match, as in access rules: docker.io/library/*, quay.io/**")
	return cmd
}

func mirrorImportCommand() *cobra.Command {
	var f mirrorFlags
	var from mirrors.ImportArgs
	cmd := &cobra.Command{
		Use:     "import FILE",
		Short:   "Import images that were exported elsewhere into the mirrors",
		Example: `  slipway mirror import --config /etc/slipway/config.yml mirrors.tar`,
		Long: `Import the images of a tar file into the mirrors of their upstreams, without asking the
upstreams. slipway mirror export and docker save write such files; any tar file in the layout
of the OCI image specification will do if it names its images in full. The file may be
compressed with gzip, zstd or bzip2. Files of podman save, of docker save before version 25,
and some others have no manifests. For these the manifests are made: the images then have
other digests than at their registries, and their layers stay as they are in the file. What
the mirrors have is not written again, so repeat an import that broke off to continue it. If a
server uses the data directory, the server reads the file.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if from.Path, err = filepath.Abs(args[0]); err != nil {
				return err
			}
			return f.run(cmd, true, func(a *admin.Admin) (any, func(io.Writer), error) {
				p := command.NewProgress("importing")
				rep, err := a.ImportMirrors(cmd.Context(), from, func(r airgap.Progress) {
					p.Share(r.Bytes, r.BytesTotal, "%d of %d images", r.Images, r.ImagesTotal)
				})
				p.End()
				if rep.ImagesTotal == 0 {
					return nil, nil, err
				}
				return rep, func(w io.Writer) {
					fmt.Fprintf(w, "%d of %d images are here, with %d manifests; %d blobs came from the file, %d were here before, %d parts are not in it\n",
						rep.Images, rep.ImagesTotal, rep.Manifests, rep.Blobs, rep.Present, rep.Absent)
				}, err
			})
		},
	}
	f.add(cmd)
	return cmd
}

func mirrorEventsCommand() *cobra.Command {
	var f mirrorFlags
	cmd := &cobra.Command{
		Use:     "events",
		Short:   "Show what a running server fetches, moves and removes, as it happens",
		Example: `  slipway mirror events --config /etc/slipway/config.yml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return command.WithAdmin(cmd, &f.ServerFlags, false, func(a *admin.Admin) error {
				w := cmd.OutOrStdout()
				enc := json.NewEncoder(w)
				return a.MirrorEvents(cmd.Context(), func(e mirror.Event) error {
					if f.output == "json" {
						return enc.Encode(e)
					}
					return printEvent(w, e)
				})
			})
		},
	}
	f.add(cmd)
	return cmd
}

func printEvent(w io.Writer, e mirror.Event) error {
	what := e.Repo
	if e.Ref != "" {
		sep := ":"
		if oci.IsDigest(e.Ref) {
			sep = "@"
		}
		what += sep + e.Ref
	}
	text := fmt.Sprintf("%s %-9s %s", e.Time.Format("15:04:05"), e.Action, what)
	if e.Bytes > 0 {
		text += ", " + command.Size(e.Bytes)
	}
	if e.Duration > 0 {
		text += ", " + e.Duration.Round(1e6).String()
	}
	if e.Err != "" {
		text += ": " + e.Err
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
