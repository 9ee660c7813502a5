package image

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/volref"
	volumeregistry "example.org/slipway/volume/service"
)

// buildFlags are the flags of slipway volume build.
type buildFlags struct {
	volumeFlags
	detach bool
}

func volumeBuildCommand() *cobra.Command {
	var f buildFlags
	cmd := &cobra.Command{
		Use:   "build IMAGE",
		Short: "Build an image in a registry as volumes",
		Long: `Ask the registry to build REGISTRY/REPOSITORY:TAG as volumes, and wait until they are built.
The registry must be one that slipway serve runs with volumes in its configuration. Volumes
that exist are used as they are, so the command can be repeated at any time: it builds only
what the storage has lost. With volumes.build: push, the registry builds volumes by itself.`,
		Example: `  slipway volume build registry.example.com/team/app:1
  slipway volume build --fs erofs --wait 10m localhost:5000/team/app:1
  slipway volume build --detach registry.example.com/team/app:1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return buildVolume(cmd, &f, args[0]) },
	}
	f.add(cmd, "file system, ext4 or erofs (default: as the registry is configured)")
	fl := cmd.Flags()
	fl.BoolVar(&f.detach, "detach", false, "do not wait for the volumes")
	fl.BoolVar(&f.json, "json", false, "print the registry's answer as JSON")
	wait := fl.Lookup("wait")
	wait.Hidden, wait.Usage = false, "how long to wait for the volumes (default 30m)"
	return cmd
}

func buildVolume(cmd *cobra.Command, f *buildFlags, arg string) error {
	ctx := cmd.Context()
	if f.fs != "" && f.fs != volref.Ext4 && f.fs != volref.EROFS {
		return command.Usagef("--fs %s is no file system of volumes; there are %s and %s", f.fs, volref.Ext4, volref.EROFS)
	}
	r, img, err := f.open(cmd, arg)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.Reg.BuildVolume(ctx, r.Repo, img.Manifest.Digest, f.fs); err != nil {
		return err
	}
	if f.detach {
		fmt.Fprintf(cmd.OutOrStdout(), "%s will be built; slipway volume info %s shows the progress\n", arg, arg)
		return nil
	}
	wait := f.remote.Wait
	if wait <= 0 {
		wait = 30 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	st, err := waitForVolumes(ctx, r, img.Manifest.Digest, f.fs)
	if err != nil {
		if cmd.Context().Err() == nil && ctx.Err() != nil {
			err = fmt.Errorf("%s was not built within %s; the registry continues, and slipway volume info %s shows the progress", arg, wait, arg)
		}
		return err
	}
	return command.PrintReport(cmd.OutOrStdout(), f.json, st, func() { printVolumes(cmd.OutOrStdout(), arg, st) })
}

// waitForVolumes waits until an image is built in a file system, or in all required ones
// if fs is "". It shows the progress.
func waitForVolumes(ctx context.Context, r *command.Image, d oci.Digest, fs string) (*client.VolumeStatus, error) {
	p := command.NewProgress("building")
	defer p.End()
	const first, longest = 50 * time.Millisecond, time.Second
	for pause := first; ; pause = min(2*pause, longest) {
		st, err := r.Reg.Volumes(ctx, r.Repo, d)
		if err != nil {
			return nil, err
		}
		there := slices.ContainsFunc(st.Records, func(rec volref.Record) bool { return fs == "" || rec.FS == fs })
		switch st.State {
		case "":
			if there {
				return st, nil
			}
			return nil, fmt.Errorf("somebody gave up the volumes of %s meanwhile", d)
		case volumeregistry.StateFailed:
			failed, err := failureOf(ctx, r, d, fs, st.Reason, there)
			if err != nil {
				return nil, err
			}
			if failed != "" {
				return nil, fmt.Errorf("%s cannot be built as volumes: %s", r.Arg, failed)
			}
			if there {
				return st, nil
			}
		}
		if st.Total > 0 {
			p.Share(st.Done, st.Total, "%s", st.State)
		} else {
			p.Show("%s", st.State)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// failureOf returns why the build of an image in a file system failed, or "" if it did
// not fail. If fs is "", any file system counts. reason comes from a status and may be
// about another file system. The result named there reports whether a record in the file
// system is served.
func failureOf(ctx context.Context, r *command.Image, d oci.Digest, fs, reason string, there bool) (string, error) {
	if fs == "" {
		return reason, nil
	}
	list, err := r.Reg.ListVolumes(ctx, r.Repo)
	if err != nil {
		return "", err
	}
	for _, v := range list {
		if v.Manifest != d || v.FS != fs {
			continue
		}
		if v.State == volumeregistry.StateFailed {
			return v.Reason, nil
		}
		if v.State != "" || there {
			return "", nil
		}
	}
	return reason, nil
}
