package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/registry/adopt"
	"example.org/slipway/serve"
)

// importFlags of slipway import.
type importFlags struct {
	configFlags
	inPlace, dryRun, verify bool
	plainHTTP, insecure     bool
	userFile, to            string
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
		Long: `With --in-place, adopt the storage directory of a Distribution registry as the data
directory: nothing is moved or changed, and "slipway serve --root DIR" serves it. Of one
in an object store the configuration file says where it is.
Exit status 1 tells that images in it are damaged; the others are adopted all the same.
Exit status 2 means that the storage has a symbolic link, and that nothing was adopted.

Otherwise copy repositories with all their tags, one repository, or one tag from
another registry; also while a server uses the data directory. What is here already
is not sent again, so an import that broke off is continued by repeating it. It is read,
and replaced where it is damaged.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.inPlace {
				return adoptInPlace(cmd, &f, args)
			}
			if len(args) == 0 {
				return usagef("name a registry to import from, or use --in-place DIR")
			}
			return withAdmin(cmd, &f.configFlags, true, func(a *serve.Admin) error { return importFrom(cmd, &f, a, args) })
		},
	}
	f.add(cmd, false)
	fl := cmd.Flags()
	fl.BoolVar(&f.inPlace, "in-place", false, "adopt the Distribution storage in the given directory")
	fl.BoolVar(&f.dryRun, "dry-run", false, "with --in-place: only tell what would be adopted")
	fl.BoolVar(&f.verify, "verify", false, "with --in-place: read every blob and check its digest")
	f.addSource(fl)
	fl.StringVar(&f.to, "to", "", "repository to copy to, where one repository is imported")
	fl.BoolVar(&f.referrers, "referrers", true, "copy signatures and other referrers as well")
	fl.BoolVar(&f.quick, "quick", false, "of what is here already compare only the sizes, do not read it")
	fl.IntVar(&f.parallel, "parallel", 0, "blobs copied at once (default 4)")
	addJSON(cmd, &f.json)
	return cmd
}

// addSource adds the flags that say how to reach the source.
func (f *importFlags) addSource(fl *pflag.FlagSet) {
	fl.BoolVar(&f.plainHTTP, "plain-http", false, "the source speaks HTTP (the default for this machine's own addresses, unless the source is written with https://)")
	fl.BoolVar(&f.insecure, "insecure", false, "the source speaks HTTPS, and its certificate is not checked")
	fl.StringVar(&f.userFile, "credentials", "", "file with user:password for the source (default: docker's own configuration)")
}

func adoptInPlace(cmd *cobra.Command, f *importFlags, args []string) error {
	oneDir := usagef("name one directory: slipway import --in-place DIR")
	if len(args) > 1 || len(args) == 1 && f.root != "" || len(args) == 0 && f.root == "" && f.file == "" {
		return oneDir
	}
	if len(args) == 1 {
		f.root = args[0]
	}
	cfg, err := f.load()
	if err != nil {
		return err
	}
	if f.root == "" && !cfg.Storage.Remote() {
		return oneDir
	}
	p := newProgress("adopting")
	rep, err := serve.AdoptInPlace(cmd.Context(), cfg, f.dryRun, adopt.Options{Verify: f.verify, Progress: func(r adopt.Report) {
		p.show("%d repositories, %d manifests, %d tags, %d blobs", r.Repositories, r.Manifests, r.Tags, r.Blobs)
	}})
	p.end()
	if refused := (*serve.RefusedError)(nil); errors.As(err, &refused) {
		return exitCode{exitUsage, err}
	}
	if err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	err = printReport(w, f.json, adoptionOf(&rep), func() {
		for _, n := range rep.Notes {
			fmt.Fprintf(w, "%s: %s %s %s\n", n.Reason, n.Repo, n.Ref, n.Detail)
		}
		fmt.Fprintf(w, "found %d repositories, %d manifests, %d tags, %d blobs; new are %d manifests, %d tags, %d blobs, %s; took %s\n",
			rep.Repositories, rep.Manifests, rep.Tags, rep.Blobs, rep.NewManifests, rep.NewTags, rep.NewBlobs, size(rep.Bytes), rep.Took.Round(1e6))
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

func importFrom(cmd *cobra.Command, f *importFlags, dst *serve.Admin, sources []string) error {
	w := cmd.OutOrStdout()
	var reports []copyReport // for JSON, which is one list
	for _, s := range sources {
		src, images, err := f.source(s)
		if err != nil {
			return err
		}
		rep, err := copyImages(cmd.Context(), dst, src, client.CopyOptions{Images: images, Referrers: f.referrers, Parallel: f.parallel, ContinueOnError: true, Logger: slog.Default()}, f.quick)
		src.Close()
		reports = append(reports, copyReportOf(s, rep))
		if !f.json {
			printCopied(w, rep)
		}
		if err != nil {
			return errors.Join(printReport(w, f.json, reports, func() {}), fmt.Errorf("import from %s: %w", s, err))
		}
	}
	return printReport(w, f.json, reports, func() {})
}

// source takes REGISTRY[/REPOSITORY[:TAG|@DIGEST]] apart and opens it.
func (f *importFlags) source(s string) (*client.Client, []client.CopyImage, error) {
	url, path := f.address(s)
	if path == "" && f.to != "" {
		return nil, nil, usagef("--to names a repository, and %s is a whole registry: name the repository to copy, %s/REPOSITORY", s, s)
	}
	o := &client.Options{DockerConfig: f.userFile == "", InsecureSkipVerify: f.insecure, Logger: slog.Default()}
	var err error
	if o.Username, o.Password, err = f.user(); err != nil {
		return nil, nil, err
	}
	c, err := client.New(url, o)
	if err != nil || path == "" {
		return c, nil, err
	}
	img := client.CopyImage{From: path, To: f.to}
	if repo, d, ok := strings.Cut(path, "@"); ok {
		img.From, img.References = repo, []string{d}
	} else if i := strings.LastIndexByte(path, ':'); i > 0 {
		img.From, img.References = path[:i], []string{path[i+1:]}
	}
	return c, []client.CopyImage{img}, nil
}

// address takes a registry's URL and the path behind it apart.
func (f *importFlags) address(s string) (url, path string) {
	scheme := ""
	for _, known := range []string{"http", "https", "docker"} {
		if rest, ok := strings.CutPrefix(s, known+"://"); ok {
			scheme, s = known, rest
		}
	}
	host, path, _ := strings.Cut(s, "/")
	switch {
	case scheme == "http" || scheme == "https":
	case f.plainHTTP || client.IsLoopback(host) && !f.insecure:
		scheme = "http"
	default:
		scheme = "https"
	}
	return scheme + "://" + host, path
}

// user reads the file of the flag --credentials, if that is set.
func (f *importFlags) user() (name, password string, err error) {
	if f.userFile == "" {
		return "", "", nil
	}
	b, err := os.ReadFile(f.userFile)
	if err != nil {
		return "", "", err
	}
	name, password, ok := strings.Cut(strings.TrimSpace(string(b)), ":")
	if !ok {
		return "", "", fmt.Errorf("%s does not hold user:password", f.userFile)
	}
	return name, password, nil
}

func copyImages(ctx context.Context, dst *serve.Admin, src oci.Registry, o client.CopyOptions, quick bool) (client.CopyProgress, error) {
	p := newProgress("copying")
	defer p.end()
	o.Progress = p.copied
	return dst.Copy(ctx, src, o, quick)
}

// copied shows how far a copy of images is.
func (p *progress) copied(c client.CopyProgress) {
	p.show("%s:%s, %d references, %d blobs, %s", c.Repo, c.Reference, c.References, c.Blobs, size(c.Bytes))
}

func printCopied(w io.Writer, rep client.CopyProgress) {
	fmt.Fprintf(w, "copied %d references: %d manifests and %d blobs sent (%s), %d were here, %d failed\n",
		rep.References, rep.Manifests, rep.Blobs, size(rep.Bytes), rep.Present, rep.Failed)
	if rep.Absent > 0 {
		fmt.Fprintf(w, "the source lacks %d manifests that its indexes name; the log tells which\n", rep.Absent)
	}
	if rep.Damaged > 0 {
		fmt.Fprintf(w, "%d contents were damaged here and are replaced, unless an error above names them\n", rep.Damaged)
	}
}
