package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/gear/rebuild"
)

// recipeFlags are the flags of slipway recipe.
type recipeFlags struct {
	check, json bool
	tempDir     string
}

// checked is the JSON form of a layer.
type checked struct {
	Layer string `json:"layer"`
	*rebuild.Report
	Stays string `json:"stays,omitempty"`
}

func recipeCommand() *cobra.Command {
	var f recipeFlags
	cmd := &cobra.Command{
		Use:   "recipe --check {BLOB | -}...",
		Short: "Show how small the recipes are from which layers are rebuilt out of their files",
		Example: `  slipway recipe --check layer.tar.gz
  curl -sL http://127.0.0.1:5000/v2/team/app/blobs/sha256:... | slipway recipe --check -`,
		Long: `A recipe is what is needed, besides the contents of a layer's files, to write the exact bytes
of the layer's blob again. Show how large the recipe of each layer blob is, and at which rate
one core rebuilds the blob. Each recipe is tried: the layer is rebuilt and its digest
compared. Nothing is changed or kept.

A recipe replaces the blob; the contents of the files stay stored. A layer for which no recipe
can be made is listed with the reason, and would stay as it is.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !f.check {
				return command.Usagef("--check is missing; recipes are only looked at")
			}
			return runRecipeCheck(cmd, &f, args)
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.check, "check", false, "only show what recipes would be, and change nothing")
	fl.StringVar(&f.tempDir, "temp-dir", "", "directory for the uncompressed layer while it is checked (default: the system's)")
	command.AddJSON(cmd, &f.json)
	return cmd
}

func runRecipeCheck(cmd *cobra.Command, f *recipeFlags, args []string) error {
	var all []checked
	for _, name := range args {
		c, err := checkRecipe(cmd, f, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, c)
	}
	if f.json {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(all)
	}
	return printRecipes(cmd.OutOrStdout(), all)
}

func checkRecipe(cmd *cobra.Command, f *recipeFlags, name string) (checked, error) {
	in := cmd.InOrStdin()
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return checked{}, err
		}
		defer file.Close()
		in = file
	}
	rep, err := rebuild.Check(cmd.Context(), in, rebuild.CheckOptions{TempDir: f.tempDir})
	if errors.Is(err, rebuild.ErrUnsupported) {
		return checked{Layer: name, Stays: err.Error()}, nil
	}
	return checked{Layer: name, Report: rep}, err
}

func printRecipes(w io.Writer, all []checked) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "blob\ttar\trecipe\tof blob\tmade at\trebuilt at\t  encoder, layer")
	var blobs, recipes int64
	for i := range all {
		r := all[i].Report
		if r == nil {
			fmt.Fprintf(t, "\t\tnone\t\t\t\t  %s: %s\n", command.Printable(all[i].Layer), command.Printable(all[i].Stays))
			continue
		}
		blobs += r.Size
		recipes += r.Recipe
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t  %s, %s\n", command.Size(r.Size), command.Size(r.Plain), command.Size(r.Recipe), share(r.Recipe, r.Size),
			rate(r.Size, r.Make), rate(r.Size, r.Rebuild), r.Encoder, command.Printable(all[i].Layer))
	}
	if len(all) > 1 {
		fmt.Fprintf(t, "%s\t\t%s\t%s\t\t\t  in all\n", command.Size(blobs), command.Size(recipes), share(recipes, blobs))
	}
	return t.Flush()
}

func share(part, whole int64) string {
	if whole == 0 {
		return ""
	}
	return fmt.Sprintf("%.3f %%", 100*float64(part)/float64(whole))
}

// rate formats the speed at which a number of bytes was processed in d.
func rate(bytes int64, d time.Duration) string {
	return fmt.Sprintf("%.1f MB/s", float64(bytes)/1e6/max(d.Seconds(), 1e-9))
}
