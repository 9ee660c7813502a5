package image

import (
	"fmt"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/oci"
	"example.org/slipway/oci/model"
)

// modelFlags are the flags of slipway push-model.
type modelFlags struct {
	remote command.ImageFlags
	from   string
	json   bool
}

func pushModelCommand() *cobra.Command {
	var f modelFlags
	cmd := &cobra.Command{
		Use:   "push-model {DIR IMAGE | --from MODEL {NEW-TAG | IMAGE}}",
		Short: "Make an image from a model's files, for image volumes of pods, and push it",
		Long: `Make an ordinary image from the files below a directory and push it. Pods mount it as a volume
(volumes: image:), and on nodes with the agent its files are fetched when they are read. The
same files always become the same image, with the same digest, and for another version only
the files that changed are sent. Symbolic links to files are followed; .git and .cache are
left out.

With --from, make such an image from a model in a registry that ModelPack or docker model
packaged, which runtimes cannot mount. The image goes to another tag or repository of the same
registry. The model stays as it is, with its digest and signatures.`,
		Example: `  slipway push-model ./llama registry.example.com/models/llama:1
  slipway push-model --from registry.example.com/models/llama:1 1-image`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.from == "" && len(args) != 2:
				return command.Usagef("name a directory and an image, or use --from MODEL")
			case f.from != "" && len(args) != 1:
				return command.Usagef("with --from there is no directory: name the new tag or image only")
			case f.from != "":
				return imageOfModel(cmd, &f, args[0])
			}
			return pushModelDir(cmd, &f, args[0], args[1])
		},
	}
	f.remote.AddReach(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.from, "from", "", "model in a registry, REGISTRY/REPOSITORY:TAG, to make the image of")
	fl.StringSliceVar(&f.remote.Platforms, "platform", []string{"linux/amd64", "linux/arm64"}, "platforms that the image is for; its files are the same")
	fl.BoolVar(&f.json, "json", false, "print what was pushed as JSON")
	return cmd
}

func pushModelDir(cmd *cobra.Command, f *modelFlags, dir, image string) error {
	m, err := model.Dir(dir)
	if err != nil {
		return err
	}
	r, err := f.remote.Open(image)
	if err != nil {
		return err
	}
	defer r.Close()
	return pushModel(cmd, f, r, m, model.Options{Repo: r.Repo, Tag: r.Ref})
}

func imageOfModel(cmd *cobra.Command, f *modelFlags, to string) error {
	r, err := f.remote.Open(f.from)
	if err != nil {
		return err
	}
	defer r.Close()
	o := model.Options{Repo: r.Repo, Tag: to}
	if strings.ContainsAny(to, "/:@") {
		dst, err := f.remote.Open(to)
		if err != nil {
			return err
		}
		defer dst.Close()
		if dst.Reg.URL() != r.Reg.URL() {
			return fmt.Errorf("%s is in another registry than the model; make the image beside it and copy that (slipway import)", to)
		}
		o.Repo, o.Tag = dst.Repo, dst.Ref
	}
	if o.Repo == r.Repo && o.Tag == r.Ref {
		return command.Usagef("the image needs another tag than the model, which stays as it is")
	}
	m, err := model.Artifact(cmd.Context(), r.Reg, r.Repo, r.Ref)
	if err != nil {
		return err
	}
	return pushModel(cmd, f, r, m, o)
}

func pushModel(cmd *cobra.Command, f *modelFlags, r *command.Image, m *model.Model, o model.Options) error {
	for _, s := range f.remote.Platforms {
		p, err := oci.ParsePlatform(s)
		if err != nil {
			return command.Usagef("%w", err)
		}
		o.Platforms = append(o.Platforms, ocispec.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant})
	}
	_, total := m.Files()
	p := command.NewProgress("pushing")
	o.Progress = func(read, sent int64) { p.Share(read, total, "%s sent", command.Size(sent)) }
	out, err := model.Push(cmd.Context(), r.Reg, m, o)
	p.End()
	if err != nil {
		return err
	}
	return command.PrintReport(cmd.OutOrStdout(), f.json, out, func() {
		w := cmd.OutOrStdout()
		fmt.Fprintf(w, "%d files of %s in %d layers, %d of them sent\n", out.Files, command.Size(out.Bytes), out.Layers, out.Sent)
		fmt.Fprintf(w, "%s/%s:%s is %s\n", r.Host, out.Repo, out.Tag, out.Digest)
	})
}
