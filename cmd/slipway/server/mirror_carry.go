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
	"example.org/slipway/serve"
)

func mirrorExportCommand() *cobra.Command {
	var f mirrorFlags
	var export serve.MirrorExportArgs
	cmd := &cobra.Command{
		Use:   "export FILE [REF...]",
		Short: "Write mirrored images into a file for a server without network",
		Example: `  slipway mirror export --config /etc/slipway/config.yml mirrors.tar
  slipway mirror export --config /etc/slipway/config.yml nginx.tar docker.io/library/nginx:1.27`,
		Long: `Write mirrored images, REPOSITORY[:TAG|@DIGEST] with the upstream's name, into a tar file in
the layout of the OCI image specification: all of them, those of a pattern, or those that
are named. Signatures and other referrers go with them. Of an index the platforms are
written that are here. The same images give the same file. With a server it is the server
that writes the file.

An image that is not whole, or cannot be read, does not keep the others out: it is left out,
and named. Exit status 1 says that there was one; slipway mirror load fetches what is
missing. If no image is whole, no file is written.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) > 1 && export.Pattern != "" {
				return command.Usagef("name images, or use --pattern")
			}
			if export.Path, err = filepath.Abs(args[0]); err != nil {
				return err
			}
			export.Images = args[1:]
			return f.run(cmd, false, func(a *serve.Admin) (any, func(io.Writer), error) {
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
	var from serve.MirrorImportArgs
	cmd := &cobra.Command{
		Use:     "import FILE",
		Short:   "Put images that were exported elsewhere into the mirrors",
		Example: `  slipway mirror import --config /etc/slipway/config.yml mirrors.tar`,
		Long: `Put the images of a file that slipway mirror export or docker save wrote, or of any tar file in
the layout of the OCI image specification that names its images in full, into the mirrors of
their upstreams, without asking these. The file may be compressed with gzip, zstd or bzip2.
Of a file of docker save from before version 25, of podman save and of others that have no
manifests, the manifests are made: the images have other digests than at their registries,
and their layers stay as they are in the file. What is here already is not written again, so that an
import that broke off is continued by repeating it. With a server it is the server that
reads the file.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if from.Path, err = filepath.Abs(args[0]); err != nil {
				return err
			}
			return f.run(cmd, true, func(a *serve.Admin) (any, func(io.Writer), error) {
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
		Short:   "Tell what a running server fetches, moves and removes, as it happens",
		Example: `  slipway mirror events --config /etc/slipway/config.yml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return command.WithAdmin(cmd, &f.ServerFlags, false, func(a *serve.Admin) error {
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
