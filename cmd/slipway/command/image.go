package command

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

// ImageFlags are the flags of commands that work on images in a registry.
type ImageFlags struct {
	source    RegistryFlags // how to reach the registry
	Platforms []string
	Wait      time.Duration
}

// Add adds the flags of a command that waits for conversions.
func (f *ImageFlags) Add(cmd *cobra.Command) {
	f.AddReach(cmd)
	cmd.Flags().DurationVar(&f.Wait, "wait", 0, "how long to wait for layers that are still being converted (default 30m)")
}

// AddReach adds the flags that say how to reach the registry.
func (f *ImageFlags) AddReach(cmd *cobra.Command) {
	f.source.AddTo(cmd.Flags(), "the registry", "it")
}

// AddPlatform adds the flag that selects one platform.
func (f *ImageFlags) AddPlatform(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.Platforms, "platform", nil, "OS/ARCHITECTURE[/VARIANT] of a multi-platform image (default: Linux on this machine's architecture)")
}

// Platform returns the one platform that was chosen, or nil.
func (f *ImageFlags) Platform() (*oci.Platform, error) {
	sel, err := f.Selection(false)
	if err != nil || len(sel.Platforms) == 0 {
		return nil, err
	}
	if len(sel.Platforms) > 1 {
		return nil, Usagef("name one --platform only")
	}
	return &sel.Platforms[0], nil
}

// Selection returns what the flags select of an image for several platforms. If all is
// set, it selects all platforms.
func (f *ImageFlags) Selection(all bool) (sel gearclient.Selection, err error) {
	if all && len(f.Platforms) > 0 {
		return sel, Usagef("--platform and --all-platforms exclude each other")
	}
	sel.All = all
	for _, s := range f.Platforms {
		p, err := oci.ParsePlatform(s)
		if err != nil {
			return sel, err
		}
		sel.Platforms = append(sel.Platforms, p)
	}
	return sel, nil
}

// Image is an image of a registry that was given to a command.
type Image struct {
	Arg, Host, Repo, Ref string
	Reg                  *client.Client
	Gear                 *gearclient.Client
	Waiting              *Progress
}

// Close closes the connection to the registry.
func (r *Image) Close() { r.Waiting.End(); r.Reg.Close() }

// Open parses REGISTRY/REPOSITORY[:TAG|@DIGEST] and opens the registry.
func (f *ImageFlags) Open(arg string) (*Image, error) {
	bare := arg[strings.Index(arg, "://")+1:]
	host, _, _ := strings.Cut(strings.TrimLeft(bare, "/"), "/")
	if host != "localhost" && !strings.ContainsAny(host, ".:") {
		return nil, fmt.Errorf("%s names no registry; write an image as REGISTRY/REPOSITORY:TAG", arg)
	}
	reg, images, err := f.source.Open(arg)
	if err != nil {
		return nil, err
	}
	if len(images) == 0 {
		reg.Close()
		return nil, fmt.Errorf("%s is a whole registry; name an image, %s/REPOSITORY:TAG", arg, host)
	}
	r := &Image{Arg: arg, Host: host, Repo: images[0].From, Ref: "latest", Reg: reg, Waiting: NewProgress("waiting")}
	if refs := images[0].References; len(refs) > 0 {
		r.Ref = refs[0]
	}
	if oci.IsDigest(r.Ref) { // a tag beside a digest adds nothing
		r.Repo, _, _ = strings.Cut(r.Repo, ":")
	}
	r.Gear = gearclient.New(reg, &gearclient.Options{Wait: f.Wait, Waiting: func(w gearclient.Waiting) {
		r.Waiting.Show("for the registry to convert layer %.19s, %s so far", w.Layer, w.For.Round(time.Second))
	}})
	return r, nil
}
