package config

import (
	"fmt"
	"io"
	"os"
	"reflect"
)

// Options are what Parse knows besides the file. The zero value works.
type Options struct {
	// Name of the file in messages. Default "config".
	Name string
	// Env are variables as os.Environ returns them. Default: none.
	Env []string
	// Overrides are values of the command line. Default: none.
	Overrides []Override
	// ReadFile reads the file of a ${file:...} reference. Default: regular
	// files up to 64 KiB from the file system.
	ReadFile func(path string) ([]byte, error)
}

// Load reads the file at path, lays env and overrides over it and validates the
// outcome. An empty path stands for an empty file, so that everything comes
// from the defaults, env and overrides.
//
// The error is Problems when the configuration is wrong. Warnings may come with
// or without an error, and should be logged.
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

// Parse is Load for text that is not in a file. It reads at most MaxFileBytes.
func Parse(r io.Reader, o *Options) (*Config, Warnings, error) {
	opts, rep, root, err := readTree(r, o)
	if err != nil {
		return nil, nil, err
	}
	c := build(root, opts, rep)
	if err := rep.err(); err != nil {
		return nil, rep.warnings, err
	}
	return c, rep.warnings, nil
}

// readTree reads a file and completes the options.
func readTree(r io.Reader, o *Options) (*Options, *report, *node, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.Name == "" {
		opts.Name = "config"
	}
	if opts.ReadFile == nil {
		opts.ReadFile = readSecretFile
	}
	text, err := io.ReadAll(io.LimitReader(r, MaxFileBytes+1))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("read configuration: %w", err)
	}
	rep := new(report)
	if len(text) > MaxFileBytes {
		rep.problem(place{name: opts.Name}, "", fmt.Sprintf("larger than %d bytes", MaxFileBytes))
		return nil, nil, nil, rep.err()
	}
	root := parseTree(text, opts.Name, rep)
	if root == nil {
		return nil, nil, nil, rep.err()
	}
	return &opts, rep, root, nil
}

// build makes a Config of the file's tree and the layers above it.
func build(root *node, o *Options, rep *report) *Config {
	if root.kind == dictNode && root.child("version") == nil {
		rep.problem(root.at, "version", `is missing: begin the file with "version: 0.1"`)
	}
	env := envMap(o.Env)
	layers := &overlay{report: rep, root: root, typ: reflect.TypeFor[Config]()}
	layers.normalize()
	layers.applyEnv(env)
	layers.applyOverrides(o.Overrides)

	c := Default()
	c.places = places{}
	d := &decoder{
		report: rep, root: reflect.TypeFor[Config](), places: c.places,
		expand: &expander{env: env, readFile: o.ReadFile},
	}
	d.value(root, reflect.ValueOf(c).Elem(), field{}, "")
	decoded := len(rep.problems) == 0
	v := &validator{report: rep, places: c.places, c: c}
	v.values()
	if decoded {
		// Of a file with unknown keys one cannot tell what goes together: the
		// mistyped key is often the one that would be missed.
		v.relations()
	}
	v.warnings()
	return c
}
