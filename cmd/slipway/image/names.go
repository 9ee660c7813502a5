package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

func listCommand() *cobra.Command {
	var f command.RegistryFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls REGISTRY[/PREFIX]",
		Short: "List the repositories of a registry",
		Long: `List the repositories of a registry that you may see, one a line. With PREFIX, list only the
repositories whose names begin with it. Registries that have no list answer with an error.`,
		Example: `  slipway ls 127.0.0.1:5000
  slipway ls registry.example.com/team/`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			url, prefix := f.Address(args[0])
			c, _, err := f.Open(url)
			if err != nil {
				return err
			}
			defer c.Close()
			return printNames(cmd.OutOrStdout(), asJSON, "repositories", func(do func(string) error) error {
				return oci.EachName(func(last string, n int) ([]string, bool, error) { return c.Repositories(cmd.Context(), last, n) },
					func(name string) error {
						if !strings.HasPrefix(name, prefix) {
							return nil
						}
						return do(name)
					})
			})
		},
	}
	f.AddTo(cmd.Flags(), "the registry", "it")
	command.AddJSON(cmd, &asJSON)
	return cmd
}

// printNames prints names as they come, or all of them as JSON under a key.
func printNames(w io.Writer, asJSON bool, key string, each func(do func(string) error) error) error {
	if !asJSON {
		return each(func(name string) error {
			_, err := fmt.Fprintln(w, command.Printable(name))
			return err
		})
	}
	names := []string{}
	err := each(func(name string) error {
		names = append(names, name)
		return nil
	})
	if err != nil {
		return err
	}
	return command.PrintReport(w, true, map[string][]string{key: names}, nil)
}

func tagsCommand() *cobra.Command {
	var f command.ImageFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "tags REGISTRY/REPOSITORY",
		Short: "List the tags of a repository",
		Long:  `List the tags of a repository, one a line, sorted by byte value.`,
		Example: `  slipway tags 127.0.0.1:5000/team/app
  slipway tags --json registry.example.com/team/app`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := f.Open(args[0])
			if err != nil {
				return err
			}
			defer r.Close()
			return printNames(cmd.OutOrStdout(), asJSON, "tags", func(do func(string) error) error {
				return oci.EachName(func(last string, n int) ([]string, bool, error) { return r.Reg.Tags(cmd.Context(), r.Repo, last, n) }, do)
			})
		},
	}
	f.AddReach(cmd)
	command.AddJSON(cmd, &asJSON)
	return cmd
}

// taggedReport is the report of slipway tag.
type taggedReport struct {
	Name   string     `json:"name"`
	Digest oci.Digest `json:"digest"`
	Tags   []string   `json:"tags"`
}

func tagCommand() *cobra.Command {
	var f command.ImageFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "tag IMAGE TAG...",
		Short: "Give an image in a registry more tags",
		Long: `Make tags of the same repository name an image, without pulling it. A tag that names another
image is moved, unless the registry refuses that.`,
		Example: `  slipway tag 127.0.0.1:5000/team/app:1.4.2 1.4 latest
  slipway tag registry.example.com/team/app@sha256:... stable
  slipway tag history registry.example.com/team/app:stable`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := f.Open(args[0])
			if err != nil {
				return err
			}
			defer r.Close()
			for _, tag := range args[1:] {
				if !oci.ValidTag(tag) {
					return command.Usagef("%q is not a tag; name tags of the repository %s, such as latest", tag, r.Repo)
				}
			}
			m, err := r.Reg.GetManifest(cmd.Context(), r.Repo, r.Ref)
			if err != nil {
				return err
			}
			rep := taggedReport{r.Repo, m.Digest, []string{}}
			for _, tag := range args[1:] {
				put := oci.PutManifest{Bytes: m.Bytes, MediaType: m.MediaType, Digest: m.Digest, Tags: []string{tag}}
				if _, err = r.Reg.PutManifest(cmd.Context(), r.Repo, put); err != nil {
					err = fmt.Errorf("tag %s: %w", tag, err)
					break
				}
				rep.Tags = append(rep.Tags, tag)
				if !asJSON {
					fmt.Fprintf(cmd.OutOrStdout(), "%s/%s:%s is %s\n", r.Host, r.Repo, tag, m.Digest)
				}
			}
			return errors.Join(err, command.PrintReport(cmd.OutOrStdout(), asJSON, rep, func() {}))
		},
	}
	f.AddReach(cmd)
	command.AddJSON(cmd, &asJSON)
	cmd.AddCommand(historyCommand())
	return cmd
}

func removeCommand() *cobra.Command {
	var f command.RegistryFlags
	var dry, asJSON, whole, yes bool
	cmd := &cobra.Command{
		Use:   "rm IMAGE... | --repository REPOSITORY",
		Short: "Delete tags, images with all their tags, or a repository from a registry",
		Long: `Delete REGISTRY/REPOSITORY:TAG, which removes that tag only, or REGISTRY/REPOSITORY@DIGEST, which
removes the image and every tag that names it. All images are looked up before anything is
deleted. An image without a tag is kept until the registry's retention or collector removes it.
slipway undelete takes a deletion back until then.

With --repository, delete REGISTRY/REPOSITORY with all its images, if no tag is immutable. The
name has to be entered on standard input then, unless --yes is given. The registry must be a
Slipway.`,
		Example: `  slipway rm 127.0.0.1:5000/team/app:old
  slipway rm --dry-run registry.example.com/team/app@sha256:...
  slipway rm --repository registry.example.com/team/app`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if whole {
				return removeRepository(cmd, &f, args, dry, asJSON, yes)
			}
			if yes {
				return command.Usagef("--yes is for --repository")
			}
			var all []*removal
			defer func() {
				for _, r := range all {
					r.reg.Close()
				}
			}()
			for _, arg := range args {
				r, err := findRemoval(cmd.Context(), &f, arg)
				if err != nil {
					return fmt.Errorf("%w; nothing was deleted", err)
				}
				all = append(all, r)
			}
			rep, err := remove(cmd.Context(), all, dry)
			w := cmd.OutOrStdout()
			return errors.Join(err, command.PrintReport(w, asJSON, rep, func() { rep.print(w) }))
		},
	}
	f.AddToMany(cmd.Flags())
	command.AddJSON(cmd, &asJSON)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what would be deleted, and delete nothing")
	cmd.Flags().BoolVar(&whole, "repository", false, "delete a repository with all its images")
	cmd.Flags().BoolVar(&yes, "yes", false, "delete the repository without asking")
	return cmd
}

// removedRepository is the report of slipway rm --repository.
type removedRepository struct {
	Name   string `json:"name"`
	DryRun bool   `json:"dry_run"`
	// Tags is how many tags there were before the deletion. Manifests is how many
	// manifests were deleted.
	Tags      int `json:"tags"`
	Manifests int `json:"manifests"`
}

// removeRepository deletes a repository after a confirmation.
func removeRepository(cmd *cobra.Command, f *command.RegistryFlags, args []string, dry, asJSON, yes bool) error {
	if len(args) != 1 {
		return command.Usagef("name one repository with --repository")
	}
	reg, images, err := f.Open(args[0])
	if err != nil {
		return err
	}
	defer reg.Close()
	if len(images) != 1 || len(images[0].References) > 0 {
		return command.Usagef("%s is not a repository; write REGISTRY/REPOSITORY", args[0])
	}
	ctx, w, rep := cmd.Context(), cmd.OutOrStdout(), removedRepository{Name: images[0].From, DryRun: dry}
	err = oci.EachName(func(last string, n int) ([]string, bool, error) { return reg.Tags(ctx, rep.Name, last, n) },
		func(string) error { rep.Tags++; return nil })
	if err != nil {
		return err
	}
	if !dry {
		if err := confirmName(cmd, rep, yes); err != nil {
			return err
		}
		if rep.Manifests, err = client.HistoryOf(reg, rep.Name).DeleteRepository(ctx); err != nil {
			return err
		}
	}
	return command.PrintReport(w, asJSON, rep, func() {
		if dry {
			fmt.Fprintf(w, "would delete the repository %s (tags: %d)\n", rep.Name, rep.Tags)
		} else {
			fmt.Fprintf(w, "deleted the repository %s (tags: %d, manifests: %d)\n", rep.Name, rep.Tags, rep.Manifests)
		}
	})
}

// confirmName returns an error unless the user enters the name of the repository, or has
// confirmed the deletion before.
func confirmName(cmd *cobra.Command, rep removedRepository, yes bool) error {
	if yes {
		return nil
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "Enter the name of the repository %s (tags: %d) to delete all its images: ", rep.Name, rep.Tags)
	line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil && err != io.EOF {
		return err
	}
	if strings.TrimSpace(line) != rep.Name {
		return fmt.Errorf("that is not the name %s, so nothing was deleted; --yes deletes without asking", rep.Name)
	}
	return nil
}

// removal is a tag or an image that is to be deleted.
type removal struct {
	arg, repo, ref string
	reg            *client.Client
	found          oci.Digest
}

func findRemoval(ctx context.Context, f *command.RegistryFlags, arg string) (*removal, error) {
	reg, images, err := f.Open(arg)
	if err != nil {
		return nil, err
	}
	r := &removal{arg: arg, reg: reg}
	if len(images) != 1 || len(images[0].References) != 1 || oci.IsDigest(images[0].References[0]) && strings.Contains(images[0].From, ":") {
		err = command.Usagef("%s names neither a tag nor a digest; write REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@DIGEST", arg)
	} else {
		r.repo, r.ref = images[0].From, images[0].References[0]
		var d oci.Descriptor
		d, err = reg.ResolveManifest(ctx, r.repo, r.ref)
		r.found = d.Digest
	}
	if err != nil {
		reg.Close()
		return nil, err
	}
	return r, nil
}

// removedReport is the report of slipway rm.
type removedReport struct {
	DryRun bool `json:"dry_run"`
	// Deleted is what was deleted or, in a dry run, would be.
	Deleted []removedImage `json:"deleted"`
}

// removedImage is a tag with the digest that it named, or an image with all its tags.
type removedImage struct {
	Name   string     `json:"name"`
	Tag    string     `json:"tag,omitempty"`
	Digest oci.Digest `json:"digest"`
}

func (r removedReport) print(w io.Writer) {
	how := "deleted"
	if r.DryRun {
		how = "would delete"
	}
	for _, d := range r.Deleted {
		if d.Tag == "" {
			fmt.Fprintf(w, "%s image %s of %s and its tags\n", how, d.Digest, d.Name)
		} else {
			fmt.Fprintf(w, "%s tag %s of %s, which names %s\n", how, d.Tag, d.Name, d.Digest)
		}
	}
}

// remove deletes all that were found. It goes on after a failure, and returns all failures.
// What is gone by its turn is none: an earlier name may have meant it, too.
func remove(ctx context.Context, all []*removal, dry bool) (removedReport, error) {
	rep := removedReport{dry, []removedImage{}}
	var failed error
	for _, r := range all {
		img, do := removedImage{r.repo, r.ref, r.found}, func() error { return r.reg.DeleteTag(ctx, r.repo, r.ref) }
		if oci.IsDigest(r.ref) {
			img.Tag, do = "", func() error { return r.reg.DeleteManifest(ctx, r.repo, r.found) }
		}
		if !dry {
			err := do()
			if oci.HasCode(err, oci.CodeManifestUnknown) {
				continue
			}
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("delete %s: %w", r.arg, err))
				continue
			}
		}
		rep.Deleted = append(rep.Deleted, img)
	}
	return rep, failed
}
