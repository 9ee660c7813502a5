package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/serve"
)

// remoteFlags are the flags of commands that work on images in a registry.
type remoteFlags struct {
	source    importFlags // how to reach the registry
	platforms []string
	wait      time.Duration
}

func (f *remoteFlags) add(cmd *cobra.Command) {
	f.addReach(cmd)
	cmd.Flags().DurationVar(&f.wait, "wait", 0, "how long to wait for layers that are still being converted (default 30m)")
}

// addReach adds the flags that say how to reach the registry.
func (f *remoteFlags) addReach(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.BoolVar(&f.source.plainHTTP, "plain-http", false, "the registry speaks HTTP (the default for this machine's own addresses, unless it is written with https://)")
	fl.BoolVar(&f.source.insecure, "insecure", false, "the registry speaks HTTPS, and its certificate is not checked")
	fl.StringVar(&f.source.userFile, "credentials", "", "file with user:password for the registry (default: docker's own configuration)")
}

// addPlatform adds the choice of one platform.
func (f *remoteFlags) addPlatform(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.platforms, "platform", nil, "os/architecture[/variant] of the image, where there are several (default: Linux on this machine's architecture)")
}

// platform is the one platform that was chosen, or nil.
func (f *remoteFlags) platform() (*oci.Platform, error) {
	sel, err := f.selection(false)
	if err != nil || len(sel.Platforms) == 0 {
		return nil, err
	}
	if len(sel.Platforms) > 1 {
		return nil, usagef("name one --platform only")
	}
	return &sel.Platforms[0], nil
}

func (f *remoteFlags) selection(all bool) (sel gearclient.Selection, err error) {
	if all && len(f.platforms) > 0 {
		return sel, usagef("--platform and --all-platforms exclude each other")
	}
	sel.All = all
	for _, s := range f.platforms {
		p, err := oci.ParsePlatform(s)
		if err != nil {
			return sel, err
		}
		sel.Platforms = append(sel.Platforms, p)
	}
	return sel, nil
}

// remoteImage is an image of a registry that a command was given.
type remoteImage struct {
	arg, host, repo, ref string
	reg                  *client.Client
	gear                 *gearclient.Client
	waiting              *progress
}

func (r *remoteImage) close() { r.waiting.end(); r.reg.Close() }

// open takes REGISTRY/REPOSITORY[:TAG|@DIGEST] apart and opens the registry.
func (f *remoteFlags) open(arg string) (*remoteImage, error) {
	bare := arg[strings.Index(arg, "://")+1:]
	host, _, _ := strings.Cut(strings.TrimLeft(bare, "/"), "/")
	if host != "localhost" && !strings.ContainsAny(host, ".:") {
		return nil, fmt.Errorf("%s names no registry; write an image as REGISTRY/REPOSITORY:TAG", arg)
	}
	reg, images, err := f.source.source(arg)
	if err != nil {
		return nil, err
	}
	if len(images) == 0 {
		reg.Close()
		return nil, fmt.Errorf("%s is a whole registry; name an image, %s/REPOSITORY:TAG", arg, host)
	}
	r := &remoteImage{arg: arg, host: host, repo: images[0].From, ref: "latest", reg: reg, waiting: newProgress("waiting")}
	if refs := images[0].References; len(refs) > 0 {
		r.ref = refs[0]
	}
	if oci.IsDigest(r.ref) { // a tag beside a digest says nothing more
		r.repo, _, _ = strings.Cut(r.repo, ":")
	}
	r.gear = gearclient.New(reg, &gearclient.Options{Wait: f.wait, Waiting: func(w gearclient.Waiting) {
		r.waiting.show("for the registry to convert layer %.19s, %s so far", w.Layer, w.For.Round(time.Second))
	}})
	return r, nil
}

// convertFlags of slipway convert.
type convertFlags struct {
	configFlags
	remote                  remoteFlags
	tag                     string
	allPlatforms, all, json bool
	again                   bool
}

func convertCommand() *cobra.Command {
	var f convertFlags
	cmd := &cobra.Command{
		Use:   "convert {IMAGE | --all}",
		Short: "Make a Gear image of an image in a registry, or convert all layers of a data directory",
		Example: `  slipway convert 127.0.0.1:5000/team/app:1 --tag 1-gear
  slipway convert 127.0.0.1:5000/team/app:1 --platform linux/arm64
  slipway convert --all --root /var/lib/slipway`,
		Long: `Make a Gear image of REGISTRY/REPOSITORY:TAG and push it to the same repository, as
TAG-gear. The registry must be one that slipway serve runs; the files are in it already, so
only the index is sent. The same image becomes the same Gear image, to the digest.

With --all, have all layers in a data directory converted that are not yet, also while a
server uses it. A running server does that by itself with what is pushed, unless gear.convert
in its configuration is off. Exit status 1 tells that some cannot be converted.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.all == (len(args) == 1):
				return usagef("name an image, or use --all")
			case f.all:
				return convertAll(cmd, &f)
			}
			return convertImage(cmd, &f, args[0])
		},
	}
	f.add(cmd, false)
	f.remote.add(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.tag, "tag", "", "tag of the Gear image (default: the image's with -gear behind it)")
	fl.StringArrayVar(&f.remote.platforms, "platform", nil, "os/architecture[/variant] to convert, may be repeated (default: Linux on this machine's architecture)")
	fl.BoolVar(&f.allPlatforms, "all-platforms", false, "convert the images for all platforms, and push an index of them")
	fl.BoolVar(&f.all, "all", false, "convert all layers of the data directory")
	fl.BoolVar(&f.again, "again", false, "with --all: also layers whose conversion has failed before")
	fl.BoolVar(&f.json, "json", false, "print the report as JSON; durations are in nanoseconds")
	return cmd
}

func convertImage(cmd *cobra.Command, f *convertFlags, arg string) error {
	sel, err := f.remote.selection(f.allPlatforms)
	if err != nil {
		return err
	}
	r, err := f.remote.open(arg)
	if err != nil {
		return err
	}
	defer r.close()
	out, err := r.gear.Convert(cmd.Context(), r.repo, r.ref, gearclient.ConvertOptions{Tag: f.tag, Select: sel})
	r.waiting.end()
	if err != nil {
		return err
	}
	return printReport(cmd.OutOrStdout(), f.json, out, func() {
		for _, p := range out.Images {
			printPushed(cmd.OutOrStdout(), p)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s/%s:%s is %s\n", r.host, out.Repo, out.Tag, out.Digest)
	})
}

func printPushed(w io.Writer, p gearclient.Pushed) {
	fmt.Fprintf(w, "%s: Gear image of %d entries, %d files of %s, in a layer of %s\n", p.Platform, p.Entries, p.Files, size(p.Bytes), size(p.LayerBytes))
}

func convertAll(cmd *cobra.Command, f *convertFlags) error {
	return withAdmin(cmd, &f.configFlags, false, func(a *serve.Admin) error {
		p := newProgress("converting")
		rep, err := a.Convert(cmd.Context(), serve.ConvertArgs{Again: f.again}, func(r serve.ConvertReport) {
			doing := ""
			if len(r.Active) > 0 {
				l := r.Active[0]
				doing = fmt.Sprintf("; %.19s: %s of %s", l.Layer, size(l.Bytes), size(l.Size))
			}
			p.show("%d layers converted, %d wait, %d failed%s", r.Converted, r.Waiting, r.Failed, doing)
		})
		p.end()
		if err != nil {
			return err
		}
		err = printReport(cmd.OutOrStdout(), f.json, rep, func() {
			printFailures(cmd.OutOrStdout(), rep.Failures)
			fmt.Fprintf(cmd.OutOrStdout(), "%d layers had to be converted, %d were, %d cannot be, in %s\n", rep.Queued, rep.Converted, rep.Failed, rep.Took.Round(1e6))
		})
		if err == nil && rep.Failed > 0 {
			err = fmt.Errorf("%d layers cannot be converted, for the reasons above; their images can be pulled as ever (--again tries once more)", rep.Failed)
		}
		return err
	})
}
