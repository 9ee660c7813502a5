package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"example.org/slipway/config"
	"example.org/slipway/internal/systemd"
	"example.org/slipway/serve"
)

// builtin is the configuration of a server that was given none.
const builtin = `version: 0.1
storage: {filesystem: {rootdirectory: ./slipway-data}}
http: {addr: "127.0.0.1:5000", debug: {addr: "127.0.0.1:5001"}}
`

// configFlags are the flags of every command that needs the configuration.
type configFlags struct {
	file, root, addr, debugAddr string
	builtin                     bool // never the system's file
}

// systemConfig and systemAgentConfig are where packages have the configurations of the server
// and the agent of a machine. Commands that are told of no other use them.
const (
	systemConfig      = "/etc/slipway/config.yml"
	systemAgentConfig = "/etc/slipway/agent.yml"
)

// ownRoot is the data directory of a server without a configuration.
const ownRoot = "./slipway-data"

// there reports whether a file exists, or may exist where it must not be looked at.
func there(name string) bool {
	_, err := os.Stat(name)
	return !errors.Is(err, fs.ErrNotExist)
}

// orSystem returns the configuration file that is meant where none is named: the system's,
// unless a directory is named, or the data of a server without a configuration are here.
func (f *configFlags) orSystem() string {
	if f.file != "" || f.builtin || f.root != "" || !there(systemConfig) {
		return f.file
	}
	// In a directory that may not be looked into nobody has a server of his own.
	if _, err := os.Stat(ownRoot); err == nil {
		return ""
	}
	return systemConfig
}

// whoseConfig adds to the error of a system's file that may not be read what can be done.
func whoseConfig(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; it is of this machine's service: be root, or name your own directory with --root", err)
	}
	return err
}

func (f *configFlags) defaultFile() string {
	if f.builtin {
		return "built-in"
	}
	return systemConfig + " if it is there and " + ownRoot + " is not, else built-in"
}

func (f *configFlags) add(cmd *cobra.Command, listening bool) {
	cmd.Flags().StringVar(&f.file, "config", "", "configuration file (default: "+f.defaultFile()+", see slipway config example)")
	cmd.Flags().StringVar(&f.root, "root", "", "data directory (default ./slipway-data)")
	if listening {
		cmd.Flags().StringVar(&f.addr, "addr", "", "address to serve on (default 127.0.0.1:5000)")
		cmd.Flags().StringVar(&f.debugAddr, "debug-addr", "", "address of metrics and health (default 127.0.0.1:5001)")
	}
}

// load reads the configuration and logs its warnings.
func (f *configFlags) load() (*config.Config, error) {
	var over []config.Override
	set := func(key, value, flag string) {
		if value != "" {
			over = append(over, config.Override{Key: key, Value: value, Source: flag})
		}
	}
	set("storage.root", f.root, "--root")
	set("http.addr", f.addr, "--addr")
	set("http.debug.addr", f.debugAddr, "--debug-addr")
	var cfg *config.Config
	var warnings config.Warnings
	var err error
	if file := f.orSystem(); file == "" {
		cfg, warnings, err = config.Parse(strings.NewReader(builtin), &config.Options{Name: "built-in configuration", Env: os.Environ(), Overrides: over})
	} else {
		cfg, warnings, err = config.Load(file, os.Environ(), over)
		if f.file == "" {
			err = whoseConfig(err)
		}
	}
	for _, w := range warnings {
		slog.Warn("configuration", "warning", w.String())
	}
	return cfg, err
}

func serveCommand() *cobra.Command {
	f := configFlags{builtin: true}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the registry",
		Example: `  slipway serve
  slipway serve --root /var/lib/slipway --addr 127.0.0.1:5000
  slipway serve --config /etc/slipway/config.yml`,
		Long: `Run the registry. Without a configuration it keeps its data in ./slipway-data and
serves on 127.0.0.1:5000, to this machine only.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := f.load()
			if err != nil {
				return err
			}
			return runServer(cmd.Context(), cfg)
		},
	}
	f.add(cmd, true)
	return cmd
}

func runServer(ctx context.Context, cfg *config.Config) error {
	log := newLogger(cfg)
	slog.SetDefault(log)
	defer systemd.FeedWatchdog(log)()
	s, err := serve.New(ctx, cfg, &serve.Options{Logger: log, Version: version})
	if err != nil {
		return err
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	reopened := make(chan struct{})
	go func() {
		defer close(reopened)
		for range hup {
			if err := s.ReopenLogs(); err != nil {
				log.Error("open the logs again after a rotation", "err", err)
			}
		}
	}()
	defer func() { signal.Stop(hup); close(hup); <-reopened }()
	err = s.Run(ctx)
	if closeErr := s.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// logHandler writes a log to w, which is standard error, and tells the journal how grave each
// line is if that is read by it.
func logHandler(w io.Writer, json bool, o *slog.HandlerOptions) slog.Handler {
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

// newLogger makes the log the configuration asks for, on standard error.
func newLogger(cfg *config.Config) *slog.Logger {
	log := slog.New(logHandler(os.Stderr, cfg.Log.Formatter != "text", &slog.HandlerOptions{Level: cfg.Log.SlogLevel()}))
	for k, v := range cfg.Log.Fields {
		log = log.With(k, v)
	}
	return log
}
