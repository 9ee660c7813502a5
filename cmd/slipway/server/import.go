package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/oci"
	"example.org/slipway/oci/imagecopy"
	"example.org/slipway/registry/adopt"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/dataroot"
)

// importFlags are the flags of slipway import.
type importFlags struct {
	command.ServerFlags
	command.RegistryFlags
	inPlace, dryRun, verify bool
	to                      string
	referrers, json, quick  bool
	parallel                int
}

func importCommand() *cobra.Command {
	var f importFlags
	cmd := &cobra.Command{
		Use:   "import {--in-place {DIR | --config FILE} | REGISTRY[/REPOSITORY[:TAG]]...}",
		Short: "Adopt a Distribution storage, or copy images from another registry",
		Example: `  slipway import --root /var/lib/slipway registry.example.com/team/app
  slipway import --root /var/lib/slipway registry.example.com/team/app:1 registry.example.com/team/db
  slipway import --in-place /var/lib/registry`,
		Long: `With --in-place, adopt the storage directory of a Distribution registry as the data directory:
nothing is moved or changed, and "slipway serve --root DIR" serves it. If the storage is in an
object store, the configuration file says where. Exit status 1 means that images in it are
damaged; the others are adopted nevertheless. Exit status 2 means that the storage has a
symbolic link, and that nothing was adopted.

Otherwise, copy repositories with all their tags, one repository, or one tag from another
registry. A server may use the data directory meanwhile. Contents that the data directory has
are not sent again, so repeat an import that broke off to continue it. They are read, and
replaced if they are damaged.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.inPlace {
				return adoptInPlace(cmd, &f, args)
			}
			if len(args) == 0 {
				return command.Usagef("name a registry to import from, or use --in-place DIR")
			}
			return command.WithAdmin(cmd, &f.ServerFlags, true, func(a *admin.Admin) error { return importFrom(cmd, &f, a, args) })
		},
	}
	f.ServerFlags.Add(cmd, false)
	fl := cmd.Flags()
	fl.BoolVar(&f.inPlace, "in-place", false, "adopt the Distribution storage in the given directory")
	fl.BoolVar(&f.dryRun, "dry-run", false, "with --in-place: only show what would be adopted")
	fl.BoolVar(&f.verify, "verify", false, "with --in-place: read every blob and check its digest")
	f.RegistryFlags.AddTo(fl, "the source", "the source")
	fl.StringVar(&f.to, "to", "", "repository to copy to, if one repository is imported")
	fl.BoolVar(&f.referrers, "referrers", true, "copy signatures and other referrers as well")
	fl.BoolVar(&f.quick, "quick", false, "compare only the sizes of contents that exist already, do not read them")
	fl.IntVar(&f.parallel, "parallel", 0, "blobs copied at once (default 4)")
	command.AddJSON(cmd, &f.json)
	return cmd
}

func adoptInPlace(cmd *cobra.Command, f *importFlags, args []string) error {
	oneDir := command.Usagef("name one directory: slipway import --in-place DIR")
	if len(args) > 1 || len(args) == 1 && f.Root != "" || len(args) == 0 && f.Root == "" && f.File == "" {
		return oneDir
	}
	if len(args) == 1 {
		f.Root = args[0]
	}
	cfg, err := f.Load()
	if err != nil {
		return err
	}
	if f.Root == "" && !cfg.Storage.Remote() {
		return oneDir
	}
	p := command.NewProgress("adopting")
	rep, err := dataroot.AdoptInPlace(cmd.Context(), cfg, f.dryRun, adopt.Options{Verify: f.verify, Progress: func(r adopt.Report) {
		p.Show("%d repositories, %d manifests, %d tags, %d blobs", r.Repositories, r.Manifests, r.Tags, r.Blobs)
	}})
	p.End()
	if refused := (*dataroot.RefusedError)(nil); errors.As(err, &refused) {
		return command.ExitWith(command.ExitUsage, err)
	}
	if err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	err = command.PrintReport(w, f.json, adoptionOf(&rep), func() {
		for _, n := range rep.Notes {
			fmt.Fprintf(w, "%s: %s %s %s\n", n.Reason, n.Repo, n.Ref, n.Detail)
		}
		fmt.Fprintf(w, "found %d repositories, %d manifests, %d tags, %d blobs; new are %d manifests, %d tags, %d blobs, %s; took %s\n",
			rep.Repositories, rep.Manifests, rep.Tags, rep.Blobs, rep.NewManifests, rep.NewTags, rep.NewBlobs, command.Size(rep.Bytes), rep.Took.Round(1e6))
	})
	if err != nil {
		return err
	}
	var lacks []string
	for reason, n := range rep.Lacks() {
		lacks = append(lacks, fmt.Sprintf("%d %s", n, reason))
	}
	if len(lacks) == 0 {
		return nil
	}
	slices.Sort(lacks)
	return fmt.Errorf("the storage is damaged, and what it lacks is not adopted (%s; listed above); push these images again, or delete their tags", strings.Join(lacks, ", "))
}

func importFrom(cmd *cobra.Command, f *importFlags, dst *admin.Admin, sources []string) error {
	w := cmd.OutOrStdout()
	var reports []copyReport // reports for JSON, which prints one list
	for _, s := range sources {
		src, images, err := f.Open(s)
		if err != nil {
			return err
		}
		if len(images) > 0 {
			images[0].To = f.to
		} else if f.to != "" {
			src.Close()
			return command.Usagef("--to names a repository, and %s is a whole registry: name the repository to copy, %s/REPOSITORY", s, s)
		}
		rep, err := copyImages(cmd.Context(), dst, src,
			imagecopy.Options{Images: images, Referrers: f.referrers, Parallel: f.parallel, ContinueOnError: true, Logger: slog.Default()}, f.quick)
		src.Close()
		reports = append(reports, copyReportOf(s, rep))
		if !f.json {
			printCopied(w, rep)
		}
		if err != nil {
			return errors.Join(command.PrintReport(w, f.json, reports, func() {}), fmt.Errorf("import from %s: %w", s, err))
		}
	}
	return command.PrintReport(w, f.json, reports, func() {})
}

func copyImages(ctx context.Context, dst *admin.Admin, src oci.Registry, o imagecopy.Options, quick bool) (imagecopy.Progress, error) {
	p := command.NewProgress("copying")
	defer p.End()
	o.Progress = showCopied(p)
	return dst.Copy(ctx, src, o, quick)
}

// showCopied shows the progress of a copy of images.
func showCopied(p *command.Progress) func(imagecopy.Progress) {
	return func(c imagecopy.Progress) {
		p.Show("%s:%s, %d of %d tags, repository %d of %d; %d blobs, %s", c.Repo, c.Reference, c.Tag, c.Tags, c.Repository, c.Repositories, c.Blobs, command.Size(c.Bytes))
	}
}

func printCopied(w io.Writer, rep imagecopy.Progress) {
	fmt.Fprintf(w, "copied %d references: %d manifests and %d blobs sent (%s), %d were here, %d failed\n",
		rep.References, rep.Manifests, rep.Blobs, command.Size(rep.Bytes), rep.Present, rep.Failed)
	if rep.Absent > 0 {
		fmt.Fprintf(w, "the source lacks %d manifests that its indexes name; the log says which\n", rep.Absent)
	}
	if rep.Damaged > 0 {
		fmt.Fprintf(w, "%d contents were damaged here and are replaced, unless an error above names them\n", rep.Damaged)
	}
}
