package image

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	gearclient "example.org/slipway/gear/client"
	"example.org/slipway/oci/client"
	"example.org/slipway/oci/volref"
	"example.org/slipway/serve/admin"
	volumeregistry "example.org/slipway/volume/service"
)

// volumeCommand returns the command slipway volume. onNode are its subcommands for a
// node.
func volumeCommand(onNode []*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volume",
		Short: "Manage images as block volumes in storage that nodes share",
		Example: `  slipway volume build 127.0.0.1:5000/team/app:1
  slipway volume ls 127.0.0.1:5000/team/app`,
		Long: `Manage images as block volumes. A registry builds volumes in a Ceph pool or a shared directory
(volumes in its configuration). Nodes map them and read blocks when they are touched.`,
	}
	cmd.AddCommand(volumeBuildCommand(), volumeInfoCommand(), volumeLsCommand(), volumeRmCommand())
	cmd.AddCommand(onNode...)
	return cmd
}

// volumeFlags are the flags of commands that work on one image.
type volumeFlags struct {
	remote command.ImageFlags
	fs     string
	json   bool
}

func (f *volumeFlags) add(cmd *cobra.Command, fs string) {
	f.remote.Add(cmd)
	cmd.Flags().Lookup("wait").Hidden = true // no command here waits for layers
	f.remote.AddPlatform(cmd)
	if fs != "" {
		cmd.Flags().StringVar(&f.fs, "fs", "", fs)
	}
}

// open opens the registry of an image and finds the image's manifest.
func (f *volumeFlags) open(cmd *cobra.Command, arg string) (*command.Image, *gearclient.Image, error) {
	platform, err := f.remote.Platform()
	if err != nil {
		return nil, nil, err
	}
	r, err := f.remote.Open(arg)
	if err != nil {
		return nil, nil, err
	}
	img, err := r.Gear.One(cmd.Context(), r.Repo, r.Ref, platform)
	if err != nil {
		r.Close()
		return nil, nil, err
	}
	return r, img, nil
}

func volumeInfoCommand() *cobra.Command {
	var f volumeFlags
	cmd := &cobra.Command{
		Use:   "info IMAGE",
		Short: "Show where the volumes of an image are",
		Example: `  slipway volume info registry.example.com/team/app:1
  slipway volume info --json localhost:5000/team/app:1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, img, err := f.open(cmd, args[0])
			if err != nil {
				return err
			}
			defer r.Close()
			st, err := r.Reg.Volumes(cmd.Context(), r.Repo, img.Manifest.Digest)
			if err != nil {
				return err
			}
			return command.PrintReport(cmd.OutOrStdout(), f.json, st, func() { printVolumes(cmd.OutOrStdout(), args[0], st) })
		},
	}
	f.add(cmd, "")
	cmd.Flags().BoolVar(&f.json, "json", false, "print the registry's answer as JSON")
	return cmd
}

// printVolumes prints what a registry reports about an image.
func printVolumes(w io.Writer, image string, st *client.VolumeStatus) {
	for i := range st.Records {
		r := &st.Records[i]
		fmt.Fprintf(w, "%s: %s in %s\n", r.FS, r.Volume(), placeText(r.Place))
		for n, l := range r.Layers {
			if l.Volume != "" {
				fmt.Fprintf(w, "    layer %d %s\n        %s, device of %s, %s stored\n", n+1, l.Digest, l.Volume, command.Size(l.Size), command.Size(l.Used))
			}
		}
	}
	switch {
	case st.State != "":
		fmt.Fprintln(w, stateText(st.State, st.Reason, st.Done, st.Total))
	case len(st.Records) == 0:
		fmt.Fprintf(w, "no volumes; slipway volume build %s has them built\n", image)
	}
}

// placeText formats a place for people.
func placeText(p volref.Place) string {
	if p.Driver == "rbd" {
		return fmt.Sprintf("pool %s, namespace %s of Ceph cluster %s", p.Pool, p.Namespace, p.Cluster)
	}
	return fmt.Sprintf("shared directory %s", p.Cluster)
}

func stateText(state, reason string, done, total int64) string {
	text := state
	if total > 0 {
		text += fmt.Sprintf(": %s of %s", command.Size(done), command.Size(total))
	}
	if reason != "" {
		text += ": " + reason
	}
	return text
}

func volumeRmCommand() *cobra.Command {
	var f volumeFlags
	cmd := &cobra.Command{
		Use:   "rm IMAGE",
		Short: "Drop the volumes of an image; the image stays",
		Long: `Drop the volumes of an image; the image itself stays. Volumes that no other image needs are
removed from the storage after storage.gc.grace, once no node uses them; slipway gc --now on
the registry's machine removes them at once. If the registry's configuration says so, a push
of the image builds its volumes again.`,
		Example: `  slipway volume rm registry.example.com/team/app:1
  slipway volume rm --fs erofs registry.example.com/team/app:1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, img, err := f.open(cmd, args[0])
			if err != nil {
				return err
			}
			defer r.Close()
			if err := r.Reg.RemoveVolume(cmd.Context(), r.Repo, img.Manifest.Digest, f.fs); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s has no volumes any more\n", args[0])
			return nil
		},
	}
	f.add(cmd, "drop only volumes with this file system, ext4 or erofs (default: all)")
	return cmd
}

// lsFlags are the flags of slipway volume ls.
type lsFlags struct {
	command.ServerFlags
	remote command.ImageFlags
	json   bool
}

func volumeLsCommand() *cobra.Command {
	var f lsFlags
	cmd := &cobra.Command{
		Use:   "ls [REPOSITORY]",
		Short: "List the images that have volumes, in a repository or a data directory",
		Long: `List the images that have volumes or are to get them: those of REGISTRY/REPOSITORY, or,
without it, all of a data directory. A server may use the directory meanwhile.`,
		Example: `  slipway volume ls registry.example.com/team/app
  slipway volume ls --config /etc/slipway/config.yml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listAllVolumes(cmd, &f)
			}
			r, err := f.remote.Open(args[0])
			if err != nil {
				return err
			}
			defer r.Close()
			list, err := r.Reg.ListVolumes(cmd.Context(), r.Repo)
			if err != nil {
				return err
			}
			return command.PrintReport(cmd.OutOrStdout(), f.json, list, func() {
				t := newVolumeTable(cmd.OutOrStdout())
				for _, v := range list {
					t.row(r.Repo, string(v.Manifest), v.FS, v.State, v.Reason, v.Volume, v.Size, v.Used)
				}
				t.end()
			})
		},
	}
	f.ServerFlags.Add(cmd, false)
	f.remote.Add(cmd)
	cmd.Flags().Lookup("wait").Hidden = true
	cmd.Flags().BoolVar(&f.json, "json", false, "print the list as JSON")
	return cmd
}

func listAllVolumes(cmd *cobra.Command, f *lsFlags) error {
	return command.WithAdmin(cmd, &f.ServerFlags, false, func(a *admin.Admin) error {
		rep, err := a.Volumes(cmd.Context(), admin.VolumesArgs{List: true})
		if err != nil {
			return err
		}
		return command.PrintReport(cmd.OutOrStdout(), f.json, rep.Images, func() {
			t := newVolumeTable(cmd.OutOrStdout())
			for _, v := range rep.Images {
				t.row(v.Repo, string(v.Manifest), v.FS, v.State, v.Reason, v.Volume, v.Size, v.Used)
			}
			t.end()
		})
	})
}

// volumeTable prints images line by line.
type volumeTable struct{ w *tabwriter.Writer }

func newVolumeTable(w io.Writer) volumeTable {
	t := volumeTable{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
	fmt.Fprintln(t.w, "REPOSITORY\tMANIFEST\tFS\tSTATE\tDEVICE\tSTORED\tVOLUME")
	return t
}

func (t volumeTable) row(repo, manifest, fs, state, reason, volume string, device, used int64) {
	if state == "" {
		state = "built"
	}
	if reason != "" {
		state += " (" + strings.Join(strings.Fields(reason), " ") + ")"
	}
	sizes := [2]string{"-", "-"}
	if volume != "" {
		sizes = [2]string{command.Size(device), command.Size(used)}
	} else {
		volume = "-"
	}
	fmt.Fprintf(t.w, "%s\t%.19s\t%s\t%s\t%s\t%s\t%s\n", repo, manifest, fs, state, sizes[0], sizes[1], volume)
}

func (t volumeTable) end() { _ = t.w.Flush() } // ignored, because errors of standard output cannot be reported

// printVolumeStatus prints the state of a registry's volumes.
func printVolumeStatus(w io.Writer, st *volumeregistry.Status) {
	if st.Away != "" {
		fmt.Fprintf(w, "volumes: %s\n", st.Away)
	} else {
		fmt.Fprintf(w, "%d volumes in %s; %d of them are needed no more\n", st.Volumes, placeText(st.Place), st.Unused)
	}
	if st.Elsewhere > 0 {
		fmt.Fprintf(w, "%d volumes are in other storage, which this configuration does not name\n", st.Elsewhere)
	}
	fmt.Fprintf(w, "%d images are built as volumes, %d wait, %d are being built, %d have failed\n", st.Built, st.Waiting, len(st.Active), st.Failed)
	for _, a := range st.Active {
		fmt.Fprintf(w, "    %s@%s %s in %s\n", a.Repo, a.Manifest, stateText(a.FS, "", a.Done, a.Total), a.Took.Round(time.Second/10))
	}
	for _, l := range st.Failures {
		fmt.Fprintf(w, "failed: %s@%s %s, %d attempts: %s\n", l.Repo, l.Manifest, l.FS, l.Attempts, l.Reason)
	}
}
