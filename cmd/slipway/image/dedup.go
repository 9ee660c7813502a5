package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/gear/dedup"
	"example.org/slipway/oci/client"
)

// dedupFlags are the flags of slipway dedup.
type dedupFlags struct {
	source                   command.RegistryFlags // how to reach a registry
	platform                 string
	allPlatforms, json       bool
	level, workers           int
	categories, used         string
	csvDir, svgDir, spillDir string
}

func dedupCommand() *cobra.Command {
	var f dedupFlags
	cmd := &cobra.Command{
		Use:   "dedup {LAYOUT-DIR | REGISTRY[/REPOSITORY[:TAG]]}...",
		Short: "Compare how much space images take with shared layers, files and chunks",
		Example: `  slipway dedup layouts/app layouts/db
  slipway dedup 127.0.0.1:5000/team/app --output json`,
		Long: `Read images once, and report how much space they take if each is stored by itself, with shared
layers (as a registry stores them), with shared files (as Gear stores them) and with shared
chunks of 128 KiB.

A directory is an OCI image layout, or has several below it: the image in DIR/SERIES/VERSION
is called SERIES/VERSION. From a registry, all tagged images of one repository or of all
repositories are read; a repository is a series. Nothing is changed anywhere.

With --used the command also reports how much images share of the files that they need for
their task. The file has a line of JSON for each image:
{"image":"SERIES/VERSION","files":["PATH",...]}`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runDedup(cmd, &f, args) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.platform, "platform", "linux/amd64", "platform to take of multi-platform images")
	fl.BoolVar(&f.allPlatforms, "all-platforms", false, "take the images for all platforms")
	fl.IntVar(&f.level, "level", 3, "level of zstd for files and chunks, 1 to 22")
	fl.IntVar(&f.workers, "workers", 0, "layers read at once (default: the number of cores)")
	fl.StringVar(&f.categories, "categories", "", "CSV file with lines SERIES,CATEGORY: report on categories, too")
	fl.StringVar(&f.used, "used", "", "file with what each image needs")
	fl.StringVar(&f.csvDir, "csv", "", "write CSV files into this directory")
	fl.StringVar(&f.svgDir, "svg", "", "draw charts into this directory")
	fl.BoolVar(&f.json, "json", false, "print JSON instead of tables")
	fl.StringVar(&f.spillDir, "temp-dir", "", "directory for files of more than 16 MiB while they are read (default: the system's)")
	f.source.AddToMany(fl)
	return cmd
}

func runDedup(cmd *cobra.Command, f *dedupFlags, args []string) error {
	if f.level < 1 || f.level > 22 {
		return command.Usagef("--level is %d; levels of zstd are 1 to 22", f.level)
	}
	o := dedup.Options{Workers: f.workers, Level: f.level, TempDir: f.spillDir}
	var err error
	if o.Categories, err = readFile(f.categories, dedup.ReadCategories); err != nil {
		return err
	}
	if o.Used, err = readFile(f.used, dedup.ReadUsed); err != nil {
		return err
	}
	set := dedup.Set{Platform: f.platform, AllPlatforms: f.allPlatforms}
	for _, arg := range args {
		c, err := f.collect(cmd.Context(), &set, arg)
		if c != nil {
			defer c.Close()
		}
		if err != nil {
			return err
		}
	}
	p := command.NewProgress("reading")
	o.Progress = func(n dedup.Progress) {
		p.Share(n.Bytes, n.TotalBytes, "%d of %d layers", n.Layers, n.TotalLayers)
	}
	rep, err := dedup.Analyse(cmd.Context(), &set, &o)
	p.End()
	if err != nil {
		return err
	}
	return f.write(cmd, rep)
}

// collect adds the images of an argument to the set. If it returns a client, the client
// must stay open.
func (f *dedupFlags) collect(ctx context.Context, set *dedup.Set, arg string) (*client.Client, error) {
	if info, err := os.Stat(arg); err == nil && info.IsDir() {
		return nil, set.AddLayouts(ctx, arg)
	}
	bare := arg[strings.Index(arg, "://")+1:]
	host, _, _ := strings.Cut(strings.TrimLeft(bare, "/"), "/")
	if strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, ".") || host != "localhost" && !strings.ContainsAny(host, ".:") {
		return nil, fmt.Errorf("%s is neither a directory nor a registry", arg)
	}
	c, images, err := f.source.Open(arg)
	if err != nil {
		return nil, err
	}
	if len(images) == 0 {
		err = set.AddRegistry(ctx, c, host)
	}
	for _, img := range images {
		err = errors.Join(err, set.AddRepository(ctx, c, host, img.From, img.References))
	}
	if err != nil {
		err = fmt.Errorf("read %s: %w", arg, err)
	}
	return c, err
}

// write writes the findings. It returns an error if images were left out.
func (f *dedupFlags) write(cmd *cobra.Command, rep *dedup.Report) error {
	write := rep.WriteText
	if f.json {
		write = rep.WriteJSON
	}
	if err := write(cmd.OutOrStdout()); err != nil {
		return err
	}
	if f.csvDir != "" {
		if err := rep.WriteCSV(f.csvDir); err != nil {
			return err
		}
	}
	if f.svgDir != "" {
		if err := rep.WriteSVG(f.svgDir); err != nil {
			return err
		}
	}
	for _, p := range rep.Problems {
		fmt.Fprintln(cmd.ErrOrStderr(), p)
	}
	if rep.LeftOut > 0 || len(rep.Problems) > 0 {
		return fmt.Errorf("%d of %d images were left out", rep.LeftOut, rep.Images+rep.LeftOut)
	}
	return nil
}

// readFile parses a file if name is not empty.
func readFile[T any](name string, parse func(io.Reader) (T, error)) (v T, err error) {
	if name == "" {
		return v, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return v, err
	}
	defer file.Close()
	if v, err = parse(file); err != nil {
		return v, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}
