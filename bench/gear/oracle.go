package gear

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"example.org/slipway/integration/bench/measure"
	"example.org/slipway/integration/internal/tool"
	"example.org/slipway/integration/internal/treecmp"
)

// Oracle compares the trees that the registry returns with the trees that another program
// unpacks.
type Oracle struct {
	Run     Run    `json:"run"`
	Against string `json:"against"`
	Images  int    `json:"images"`
	// Entries is the number of entries compared, over all images.
	Entries int64 `json:"entries"`
	// Different lists the images with differences or failures.
	Different []Different `json:"different,omitempty"`
}

// Different is an image whose trees differ, or that could not be compared.
type Different struct {
	Image string   `json:"image"`
	Lines []string `json:"lines"`
}

// mostDifferences is the maximum number of differences kept for an image.
const mostDifferences = 20

func runOracle(b *bench, ctx context.Context) error {
	began := time.Now()
	umoci, err := tool.Find("umoci")
	if err != nil {
		return fmt.Errorf("umoci, which unpacks what exports are compared with: %w", err)
	}
	if os.Geteuid() != 0 {
		return errors.New("only root can compare owners, devices and attributes")
	}
	l, err := b.load(ctx)
	if err != nil {
		return err
	}
	out := &Oracle{Images: len(b.images), Against: "umoci raw unpack"}
	if v, err := exec.CommandContext(ctx, umoci, "--version").Output(); err == nil {
		out.Against += " (" + strings.TrimSpace(string(v)) + ")"
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.NumCPU())
	done := 0
	for i, im := range b.images {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			n, lines, err := b.compare(ctx, l, umoci, im, filepath.Join(b.trees, fmt.Sprintf("tree%d", i)))
			if err != nil {
				lines = append(lines, "not compared: "+err.Error())
			}
			mu.Lock()
			defer mu.Unlock()
			done++
			out.Entries += n
			if len(lines) > 0 {
				out.Different = append(out.Different, Different{im.String(), lines})
			}
			b.Logf("compared %d of %d: %s: %d differences", done, len(b.images), im, len(lines))
			for _, line := range lines {
				b.Logf("    %s", line)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	out.Run = b.since(began)
	b.results.Oracle = out
	return nil
}

// compare unpacks an image in both ways below dir, compares the trees, and removes both.
func (b *bench) compare(ctx context.Context, l *loaded, umoci string, im *image, dir string) (entries int64, lines []string, err error) {
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, nil, err
	}
	got, want := filepath.Join(dir, "got"), filepath.Join(dir, "want")
	ref := l.addr + "/" + im.Repo() + ":" + im.Version
	for _, args := range [][]string{
		{b.Binary, "export", ref, got},
		{umoci, "raw", "unpack", "--image", im.Dir + ":" + im.Version, want},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
		if text, err := cmd.CombinedOutput(); err != nil {
			return 0, nil, fmt.Errorf("%s: %w: %.1000s", filepath.Base(args[0]), err, text)
		}
	}
	known, err := newKnown(l, im)
	if err != nil {
		return 0, nil, err
	}
	lines, err = treecmp.Compare(got, want, &treecmp.Options{Max: mostDifferences, Ignore: known.ignore})
	return known.entries, lines, err
}

// Head implements [measure.Part].
func (o *Oracle) Head() string { return o.Run.Head() }

// Title implements [measure.Part].
func (o *Oracle) Title() string { return "Oracle" }

// About implements [measure.Part].
func (o *Oracle) About() string {
	return "Every image is written out by `slipway export` from settled packs and unpacked by " + o.Against + ", and the two trees are compared: " +
		"names, types, contents, modes, owners, times of files to the nanosecond, attributes, targets, device numbers, hard links. " + knownText
}

// Targets implements [measure.Part].
func (o *Oracle) Targets() []measure.Target {
	return []measure.Target{{Scenario: "oracle", What: "images that differ", Limit: 0, Figure: float64(len(o.Different))}}
}

// Write implements [measure.Part].
func (o *Oracle) Write(w *strings.Builder) {
	fmt.Fprintf(w, "%d images with %d entries; %d differ.\n", o.Images, o.Entries, len(o.Different))
	for _, d := range o.Different {
		fmt.Fprintf(w, "\n%s:\n\n```text\n%s\n```\n", d.Image, strings.Join(d.Lines, "\n"))
	}
}

// Pictures implements [measure.Part].
func (o *Oracle) Pictures() []measure.Picture { return nil }
