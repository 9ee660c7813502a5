package node

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/agent/api"
	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/config"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/wire"
)

func profileCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "profile",
		Short:   "Start-up profiles: which files a container opens first",
		Example: `  slipway profile show 127.0.0.1:5000/team/app:1`,
		Long: `A start-up profile lists the files that containers of an image open first. Agents record
profiles by themselves and report them to the registry, which merges the reports of all nodes.
A node fetches the files of a profile together before it starts a container.`,
	}
	cmd.AddCommand(profileShowCommand(), profileDropCommand(), profileRecordCommand())
	return cmd
}

func profileShowCommand() *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:   "show {IMAGE | CONTAINER}",
		Short: "List the files of an image's profile, in the order in which they are opened",
		Long: `List the files of the profile that this node has of an image, in the order in which they are
opened. Each line says why the profile has the file: "own" if containers of this image opened
it, "series" if those of another version did, "closure" if the image's program loads it,
"vote" if unrelated images with the same file opened it. The image must be on this node:
pulled by containerd, or mounted.`,
		Example: `  slipway profile show registry.example.com/team/app:1
  slipway profile show --json /mnt`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.caller()
			if err != nil {
				return err
			}
			p, err := c.Profile(cmd.Context(), args[0])
			if err != nil {
				return withAgentHint(err)
			}
			return command.PrintReport(cmd.OutOrStdout(), f.json, p, func() {
				for i := range p.Files {
					fmt.Fprintf(cmd.OutOrStdout(), "%10s  %-7s  /%s\n", command.Size(p.Files[i].Size), p.Files[i].From, p.Files[i].Path)
				}
				if p.Donor != "" {
					fmt.Fprintf(cmd.OutOrStdout(), "inherited from %s\n", p.Donor)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%d files of %s\n", len(p.Files), command.Size(p.Bytes))
			})
		},
	}
	f.add(cmd)
	return cmd
}

func profileDropCommand() *cobra.Command {
	var f callFlags
	cmd := &cobra.Command{
		Use:     "drop {IMAGE | CONTAINER}",
		Short:   "Forget an image's profile on this node; the registry keeps its own",
		Example: `  slipway profile drop registry.example.com/team/app:1`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.caller()
			if err != nil {
				return err
			}
			return withAgentHint(c.DropProfile(cmd.Context(), args[0]))
		},
	}
	f.add(cmd)
	return cmd
}

func profileRecordCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "record IMAGE [-- COMMAND [ARGUMENT...]]",
		Short: "Run a command in a container of an image and report what it opens to the registry",
		Long: `Run a command as slipway run does, and when it ends, report to the registry which files it
opened, and in which order. Nodes fetch these files before they start a container of the
image. Files that were opened later than profiles.duration after the start are left out.
Standard error says how many files the registry's profile then has. The exit status is the
command's, or 1 if the registry has no profile of the image.`,
		Example: `  slipway profile record registry.example.com/team/app:1
  slipway profile record registry.example.com/library/python:3.13 -- python -c 'import json'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return recordProfile(cmd, &f, args[0], args[1:]) },
	}
	f.addRun(cmd)
	return cmd
}

const (
	// reportTime is how long the agent's report may take to reach the registry.
	reportTime = 10 * time.Second
	// knownTime replaces reportTime if the registry already has a profile. The agent does
	// not report again what the registry already knows.
	knownTime = 2 * time.Second
)

// recordProfile runs a command and waits until the registry has its profile.
func recordProfile(cmd *cobra.Command, f *runFlags, image string, command []string) error {
	cfg, err := f.load()
	if err != nil {
		return err
	}
	ask, err := profileAsker(cfg, image)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	var manifest oci.Digest
	var before [][32]byte
	opened := 0
	err = runContainer(cmd, f, image, command, runHooks{
		mounted: func(m *api.MountAnswer) {
			manifest = m.Manifest
			before, _ = ask(ctx, manifest) // it is called again below
		},
		ended: func(ctx context.Context, c *api.Caller, dir string) {
			s, err := c.Status(ctx)
			for i := range s.Containers {
				if err == nil && s.Containers[i].ID == "mount:"+dir {
					opened = s.Containers[i].Recorded
				}
			}
		},
	})
	if manifest == "" {
		return err
	}
	now, aerr := awaitProfile(ctx, func() ([][32]byte, error) { return ask(ctx, manifest) }, before)
	w := cmd.ErrOrStderr()
	switch {
	case err == nil && aerr != nil:
		return fmt.Errorf("cannot get the registry's profile of %s: %w", image, aerr)
	case err == nil && len(now) == 0:
		return fmt.Errorf("the registry has no profile of %s: the command opened none of its files, or the agent could not report (its log says why; a stand-alone one writes %s)",
			image, filepath.Join(cfg.Root, "agent.log"))
	case aerr != nil:
	case slices.Equal(now, before):
		fmt.Fprintf(w, "profile: %d files opened, the registry knew them: %d files in its profile\n", opened, len(now))
	default:
		fmt.Fprintf(w, "profile: %d files opened, %d files in the registry's profile\n", opened, len(now))
	}
	return err
}

// awaitProfile asks for a profile until it differs from before, or until it has had
// enough time to change.
func awaitProfile(ctx context.Context, ask func() ([][32]byte, error), before [][32]byte) ([][32]byte, error) {
	wait := reportTime
	if len(before) > 0 {
		wait = knownTime
	}
	for end := time.Now().Add(wait); ; {
		now, err := ask()
		if err != nil || !slices.Equal(now, before) || time.Now().After(end) {
			return now, err
		}
		select {
		case <-ctx.Done():
			return now, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// profileAsker returns a function that gets a profile from an image's registry, at the
// URLs that the agent uses for the registry. That function returns nil if there is no
// profile.
func profileAsker(cfg *config.Agent, image string) (func(context.Context, oci.Digest) ([][32]byte, error), error) {
	host, rest, _ := strings.Cut(image, "/")
	var urls []string
	prefix := ""
	var o *client.Options
	for i := range cfg.Registries {
		if r := &cfg.Registries[i]; r.Host == host {
			opts, err := registryOptions(r)
			if err != nil {
				return nil, err
			}
			urls, prefix, o = r.URLs, r.Prefix, opts
		}
	}
	if o == nil {
		var remote command.ImageFlags
		r, err := remote.Open(image)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, d oci.Digest) ([][32]byte, error) { return profileIn(ctx, r.Reg, r.Repo, d) }, nil
	}
	repo, _, _ := strings.Cut(rest, "@")
	repo, _, _ = strings.Cut(repo, ":")
	return func(ctx context.Context, d oci.Digest) (names [][32]byte, err error) {
		for _, u := range urls {
			var reg *client.Client
			if reg, err = client.New(u, o); err != nil {
				return nil, err
			}
			names, err = profileIn(ctx, reg, prefix+repo, d)
			reg.Close()
			if err == nil {
				return names, nil
			}
		}
		return nil, err
	}, nil
}

// profileIn asks one registry.
func profileIn(ctx context.Context, reg *client.Client, repo string, manifest oci.Digest) ([][32]byte, error) {
	p, err := reg.GearProfile(ctx, repo, manifest)
	if oci.HasCode(err, oci.CodeManifestUnknown) || p.Origins != "" { // an inferred profile comes from no report
		return nil, nil
	}
	return p.Names, err
}

// registryOptions converts the agent's settings of a registry to options of a client.
func registryOptions(r *config.AgentRegistry) (*client.Options, error) {
	o := &client.Options{InsecureSkipVerify: r.InsecureSkipVerify, Username: r.Username, Password: r.Password, DockerConfig: r.Username == ""}
	c, err := wire.ClientTLS(r.CA, r.Certificate, r.Key)
	if err != nil {
		return nil, err
	}
	o.RootCAs, o.Certificates = c.RootCAs, c.Certificates
	return o, nil
}
