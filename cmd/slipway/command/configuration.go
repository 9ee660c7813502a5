package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/config"
	"example.org/slipway/internal/systemd"
	"example.org/slipway/serve/admin"
)

// builtin is the configuration of a server that has no configuration file.
const builtin = `version: 0.1
storage: {filesystem: {rootdirectory: ./slipway-data}}
http: {addr: "127.0.0.1:5000", debug: {addr: "127.0.0.1:5001"}}
`

// ServerFlags are the flags of every command that needs the configuration.
type ServerFlags struct {
	File, Root, addr, debugAddr string
	Builtin                     bool // never use the system's file
	// Warnings are those of the last Load.
	Warnings []string
}

// systemConfig and SystemAgentConfig are where packages put the configurations of a
// machine's server and agent. Commands use them by default.
const (
	systemConfig      = "/etc/slipway/config.yml"
	SystemAgentConfig = "/etc/slipway/agent.yml"
)

// ownRoot is the data directory of a server without a configuration.
const ownRoot = "./slipway-data"

// Exists reports whether a file exists. It returns true if this user may not find out.
func Exists(name string) bool {
	_, err := os.Stat(name)
	return !errors.Is(err, fs.ErrNotExist)
}

// orSystem returns the configuration file. If none is named, it returns the system's. It
// returns "" if a directory is named, or if the data of a server without a configuration
// are here.
func (f *ServerFlags) orSystem() string {
	if f.File != "" || f.Builtin || f.Root != "" || !Exists(systemConfig) {
		return f.File
	}
	// A directory that the user may not read does not contain the user's own server.
	if _, err := os.Stat(ownRoot); err == nil {
		return ""
	}
	return systemConfig
}

// WhoseConfig adds advice to the error of a system file that this user may not read.
func WhoseConfig(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; it is of this machine's service: be root, or name your own directory with --root", err)
	}
	return err
}

// Path returns the configuration file, or "" for the built-in configuration.
func (f *ServerFlags) Path() string { return f.orSystem() }

func (f *ServerFlags) defaultFile() string {
	if f.Builtin {
		return "built-in"
	}
	return systemConfig + " if it is there and " + ownRoot + " is not, else built-in"
}

// Add adds the flags to a command. If listening is set, it also adds the flags for the
// addresses of a server.
func (f *ServerFlags) Add(cmd *cobra.Command, listening bool) {
	cmd.Flags().StringVar(&f.File, "config", "", "configuration file (default: "+f.defaultFile()+", see slipway config example)")
	cmd.Flags().StringVar(&f.Root, "root", "", "data directory (default ./slipway-data)")
	if listening {
		cmd.Flags().StringVar(&f.addr, "addr", "", "address to serve on (default 127.0.0.1:5000)")
		cmd.Flags().StringVar(&f.debugAddr, "debug-addr", "", "address of metrics and health (default 127.0.0.1:5001)")
	}
}

// Load reads the configuration and logs its warnings.
func (f *ServerFlags) Load() (*config.Config, error) {
	var over []config.Override
	set := func(key, value, flag string) {
		if value != "" {
			over = append(over, config.Override{Key: key, Value: value, Source: flag})
		}
	}
	set("storage.root", f.Root, "--root")
	set("http.addr", f.addr, "--addr")
	set("http.debug.addr", f.debugAddr, "--debug-addr")
	var cfg *config.Config
	var warnings config.Warnings
	var err error
	if file := f.orSystem(); file == "" {
		cfg, warnings, err = config.Parse(strings.NewReader(builtin), &config.Options{Name: "built-in configuration", Env: os.Environ(), Overrides: over})
	} else {
		cfg, warnings, err = config.Load(file, os.Environ(), over)
		if f.File == "" {
			err = WhoseConfig(err)
		}
	}
	f.Warnings = nil
	for _, w := range warnings {
		f.Warnings = append(f.Warnings, w.String())
		slog.Warn("configuration", "warning", w.String())
	}
	return cfg, err
}

// SchemaCommand returns the command that prints the schema of a configuration. The parent
// command is passed as of.
func SchemaCommand(of string, schema func() []byte) *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of the configuration file",
		Example: "  " + of + " schema > schema.json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", schema())
			return err
		},
	}
}

// WithAdmin calls the function do with the data root. If a server uses the data root, the
// calls go through that server. If create is set, the data root need not exist yet.
func WithAdmin(cmd *cobra.Command, f *ServerFlags, create bool, do func(*admin.Admin) error) (err error) {
	cfg, err := f.Load()
	if err != nil {
		return err
	}
	a, err := admin.Open(cmd.Context(), cfg, &admin.Options{Create: create, Logger: slog.Default()})
	if err != nil {
		return err
	}
	defer func() {
		// This also happens after an interrupt, because closing saves what is only in
		// RAM.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), time.Minute)
		defer cancel()
		err = errors.Join(err, a.Close(ctx))
	}()
	return do(a)
}

// LogHandler returns a handler that writes a log to w, which is standard error. If the
// journal reads w, each line also has its priority.
func LogHandler(w io.Writer, json bool, o *slog.HandlerOptions) slog.Handler {
	base := func(w io.Writer) slog.Handler {
		if json {
			return slog.NewJSONHandler(w, o)
		}
		return slog.NewTextHandler(w, o)
	}
	if systemd.ToJournal() {
		return systemd.NewHandler(w, base)
	}
	return base(w)
}
