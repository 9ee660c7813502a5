package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/serve/admin"
	"example.org/slipway/serve/mirrors"
)

func mirrorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mirror",
		Short: "Manage the images mirrored from other registries",
		Example: `  slipway mirror status --config /etc/slipway/config.yml
  slipway mirror load --config /etc/slipway/config.yml docker.io/library/nginx:1.27`,
		Long: `Manage the images mirrored from other registries, which proxy.upstreams in the configuration
names. If a server uses the data directory, the server does the work.`,
	}
	cmd.AddCommand(mirrorStatusCommand(), mirrorListCommand(), mirrorLoadCommand(), mirrorPruneCommand(),
		mirrorExportCommand(), mirrorImportCommand(), mirrorEventsCommand())
	return cmd
}

// mirrorFlags are the flags of all mirror commands.
type mirrorFlags struct {
	command.ServerFlags
	output string
}

func (f *mirrorFlags) add(cmd *cobra.Command) {
	f.ServerFlags.Add(cmd, false)
	command.AddForm(cmd.Flags(), &f.output, "output", "json")
}

// run calls the function do with the data root, and prints the report that it returns,
// even after an error. If create is set, it creates a missing data root.
func (f *mirrorFlags) run(cmd *cobra.Command, create bool, do func(*admin.Admin) (rep any, text func(io.Writer), err error)) error {
	return command.WithAdmin(cmd, &f.ServerFlags, create, func(a *admin.Admin) error {
		rep, text, err := do(a)
		if text == nil {
			return err
		}
		w := cmd.OutOrStdout()
		return errors.Join(err, command.PrintReport(w, f.output == "json", rep, func() { text(w) }))
	})
}

func mirrorStatusCommand() *cobra.Command {
	var f mirrorFlags
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the state of the upstreams, and how much mirroring them saves",
		Example: `  slipway mirror status --config /etc/slipway/config.yml`,
		Long: `Show the state of each upstream, what is left of its rate limit, how many requests its mirror
has answered without it, and how much space the mirrors take. Counts begin at the server's
start.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd, false, func(a *admin.Admin) (any, func(io.Writer), error) {
				st, err := a.MirrorStatus(cmd.Context())
				if err != nil {
					return nil, nil, err
				}
				return st, func(w io.Writer) { printMirrors(w, st, time.Now()) }, nil
			})
		},
	}
	f.add(cmd)
	return cmd
}

func printMirrors(w io.Writer, st mirrors.Status, now time.Time) {
	for _, s := range st.Sources {
		fmt.Fprintf(w, "%s: %s; %s fetched, %s given out, %d downloads continued\n", s.Name, s.State, command.Size(s.PulledBytes), command.Size(s.PushedBytes), s.Resumed)
		for _, kind := range []string{"manifest", "blob"} {
			n := s.Requests[kind]
			fmt.Fprintf(w, "    %ss: %d from here, %d fetched, %d stale, %d not there, %d refused, %d offline\n", kind,
				n["hit"], n["miss"], n["stale"], n["negative"], n["denied"], n["offline"])
		}
		for _, e := range s.Upstream.Endpoints {
			fmt.Fprintf(w, "    %s: %s, %d requests, %d failed, %s to an answer", e.URL, e.State, e.Requests, e.Failures, e.Latency.Round(time.Millisecond))
			if left := e.Limit.String(); left != "" {
				fmt.Fprintf(w, ", %s", left)
			}
			if left := e.BackoffUntil.Sub(now); left > 0 {
				fmt.Fprintf(w, ", left alone for %s", left.Round(time.Second))
			}
			if e.LastError != "" {
				fmt.Fprintf(w, "; %s ago: %s", now.Sub(e.LastErrorTime).Round(time.Second), e.LastError)
			}
			fmt.Fprintln(w)
		}
	}
	for _, f := range st.Fills {
		of := ""
		if f.Size > 0 {
			of = fmt.Sprintf(" of %s (%d %%)", command.Size(f.Size), f.Bytes*100/f.Size)
		}
		fmt.Fprintf(w, "fetching %s of %s: %s%s for %d clients\n", f.Digest, f.Repo, command.Size(f.Bytes), of, f.Readers)
	}
	limit := ""
	if st.MaxBytes > 0 {
		limit = fmt.Sprintf(", at most %s", command.Size(st.MaxBytes))
	}
	fmt.Fprintf(w, "%d repositories with %d manifests take %s, of which %s are shared with other repositories%s\n", st.Usage.Repositories, st.Usage.Manifests,
		command.Size(st.Usage.Bytes), command.Size(st.Usage.Bytes-st.Usage.OnlyBytes), limit)
}

func mirrorLoadCommand() *cobra.Command {
	var f mirrorFlags
	var load mirrors.LoadArgs
	cmd := &cobra.Command{
		Use:   "load {FILE | REF}...",
		Short: "Fetch images before a client requests them",
		Long: `Fetch images, REPOSITORY[:TAG|@DIGEST] by any of their names on this server, with everything
that belongs to them. A FILE lists images, one a line; empty lines and lines that begin with #
are skipped, and - is the standard input. What the mirrors have is not fetched again, so
repeat a load that broke off to continue it.

If an image cannot be fetched, the others still are. Exit status 1 means that there was such
an image.`,
		Example: `  slipway mirror load docker.io/library/nginx:1.27 quay.io/prometheus/prometheus
  slipway mirror load images.txt --platform linux/amd64`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if load.Images, err = imagesOf(args, cmd.InOrStdin()); err != nil {
				return err
			}
			return f.run(cmd, true, func(a *admin.Admin) (any, func(io.Writer), error) {
				p := command.NewProgress("loading")
				rep, err := a.LoadMirrors(cmd.Context(), load, func(r mirrors.LoadReport) {
					p.Share(r.Bytes, r.BytesTotal, "%d of %d images, %d failed", r.Images, r.ImagesTotal, r.Failed)
				})
				p.End()
				return rep, func(w io.Writer) { printLoaded(w, rep) }, err
			})
		},
	}
	f.add(cmd)
	cmd.Flags().StringSliceVar(&load.Platforms, "platform", nil, "only these platforms of multi-platform images, OS/ARCHITECTURE[/VARIANT] (default: those that are configured)")
	cmd.Flags().IntVar(&load.Parallel, "parallel", 0, "images fetched at once (default 4)")
	return cmd
}

func printLoaded(w io.Writer, rep mirrors.LoadReport) {
	for _, e := range rep.Failures {
		fmt.Fprintf(w, "failed: %s: %s\n", e.Image, e.Reason)
	}
	fmt.Fprintf(w, "%d of %d images are here, with %d blobs of %s, in %s\n", rep.Images-rep.Failed, rep.ImagesTotal, rep.Blobs, command.Size(rep.Bytes), rep.Took.Round(1e6))
}

// imagesOf reads the images that files list, and returns other arguments unchanged.
func imagesOf(args []string, stdin io.Reader) (images []string, err error) {
	for _, arg := range args {
		if arg == "-" {
			if images, err = readImages(images, stdin); err != nil {
				return nil, fmt.Errorf("read the standard input: %w", err)
			}
			continue
		}
		fi, err := os.Stat(arg)
		if err != nil || !fi.Mode().IsRegular() {
			images = append(images, arg)
			continue
		}
		file, err := os.Open(arg)
		if err != nil {
			return nil, err
		}
		images, err = readImages(images, file)
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", arg, err)
		}
	}
	if len(images) == 0 {
		return nil, errors.New("the list has no images")
	}
	return images, nil
}

// readImages adds the images of a list.
func readImages(images []string, r io.Reader) ([]string, error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); line != "" && line[0] != '#' {
			images = append(images, line)
		}
	}
	return images, lines.Err()
}
