package config

import (
	"fmt"
	"io"
	"os"
	"reflect"

	"example.org/slipway/config/yamlfile"
)

// Options are the inputs of Parse besides the file. The zero value works.
type Options struct {
	// Name is the name of the file in messages. Default "config".
	Name string
	// Env holds variables in the form of os.Environ. Default: none.
	Env []string
	// Overrides are values of the command line. Default: none.
	Overrides []Override
	// ReadFile reads the file of a ${file:...} reference. Default: regular
	// files up to 64 KiB from the file system.
	ReadFile func(path string) ([]byte, error)
}

// Load reads the file at path, overlays env and overrides, and validates the result. If
// path is empty, the file counts as empty, so that all values come from the defaults, env
// and overrides.
//
// The error is Problems if the configuration is wrong. Warnings may come with or without
// an error, and should be logged.
func Load(path string, env []string, overrides []Override) (*Config, Warnings, error) {
	opts := &Options{Name: path, Env: env, Overrides: overrides}
	if path == "" {
		return Parse(eof{}, opts)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	return Parse(f, opts)
}

// eof is an empty file.
type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// Parse is like Load, for text that is not in a file. It reads at most MaxFileBytes.
func Parse(r io.Reader, o *Options) (*Config, Warnings, error) {
	opts, rep, root, err := readTree(r, o)
	if err != nil {
		return nil, nil, err
	}
	c := build(root, opts, rep)
	if err := rep.Err(); err != nil {
		return nil, rep.Warnings, err
	}
	return c, rep.Warnings, nil
}

// readTree reads a file and completes the options.
func readTree(r io.Reader, o *Options) (*Options, *yamlfile.Report, *yamlfile.Node, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.Name == "" {
		opts.Name = "config"
	}
	if opts.ReadFile == nil {
		opts.ReadFile = yamlfile.ReadSecretFile
	}
	text, err := io.ReadAll(io.LimitReader(r, yamlfile.MaxFileBytes+1))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("read configuration: %w", err)
	}
	rep := new(yamlfile.Report)
	if len(text) > yamlfile.MaxFileBytes {
		rep.AddProblem(yamlfile.Place{Name: opts.Name}, "", fmt.Sprintf("larger than %d bytes", yamlfile.MaxFileBytes))
		return nil, nil, nil, rep.Err()
	}
	root := yamlfile.Parse(text, opts.Name, rep)
	if root == nil {
		return nil, nil, nil, rep.Err()
	}
	return &opts, rep, root, nil
}

// build makes a Config from the file's tree and the layers above it.
func build(root *yamlfile.Node, o *Options, rep *yamlfile.Report) *Config {
	if root.Kind == yamlfile.DictNode && root.Child("version") == nil {
		rep.AddProblem(root.At, "version", `is missing: begin the file with "version: 0.1"`)
	}
	env := yamlfile.EnvMap(o.Env)
	layers := &yamlfile.Overlay{Report: rep, Root: root, Type: reflect.TypeFor[Config]()}
	layers.Normalize()
	layers.ApplyEnv(env)
	layers.ApplyOverrides(o.Overrides)

	c := Default()
	c.places = yamlfile.Places{}
	d := &yamlfile.Decoder{
		Report: rep, Root: reflect.TypeFor[Config](), Places: c.places,
		Expand: &yamlfile.Expander{Env: env, ReadFile: o.ReadFile},
	}
	d.Value(root, reflect.ValueOf(c).Elem(), yamlfile.Field{}, "")
	decoded := len(rep.Problems) == 0
	v := &validator{Report: rep, places: c.places, c: c}
	v.values()
	if decoded {
		// In a file with unknown keys the relations are unclear: the mistyped key is
		// often the key that would be missing.
		v.relations()
	}
	v.warnings()
	return c
}
