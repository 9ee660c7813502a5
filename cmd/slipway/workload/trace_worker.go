package workload

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/oci/wire"
	"example.org/slipway/workload/replay"
)

// workerFlags are the flags of slipway trace worker.
type workerFlags struct {
	listen, secretFile  string
	cert, key, clientCA string
}

func traceWorkerCommand() *cobra.Command {
	var f workerFlags
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Send requests for slipway trace replay, which runs on another machine",
		Long: `Wait for slipway trace replay --workers, and send the requests that it assigns to this worker.
A worker serves one replay at a time.

A worker sends any request that a replay orders, to any address. On any address but loopback
it therefore requires a secret that the replay has to know, or TLS with --client-ca. A secret
alone encrypts nothing, so without TLS a replay sends no credentials of its targets to workers
on other machines.`,
		Example: `  slipway trace worker --listen 0.0.0.0:7761 --secret-file secret --tls-cert worker.pem --tls-key worker.key`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.listen, "listen", "127.0.0.1:7761", "address to listen at")
	fl.StringVar(&f.secretFile, "secret-file", "", "file with the secret that replays must know")
	fl.StringVar(&f.cert, "tls-cert", "", "file with the worker's certificate: speak TLS")
	fl.StringVar(&f.key, "tls-key", "", "file with the certificate's key")
	fl.StringVar(&f.clientCA, "client-ca", "", "file with the CA of the certificates that replays must present")
	return cmd
}

func (f *workerFlags) run(ctx context.Context) error {
	secret, err := command.ReadOptionalSecret(f.secretFile)
	if err != nil {
		return err
	}
	conf, err := f.tls()
	if err != nil {
		return err
	}
	if err := replay.RequireSafe(f.listen, secret, conf); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return err
	}
	if conf == nil && secret == "" {
		log.Warn("no secret: everybody on this machine can have requests sent by this worker")
	} else if conf == nil {
		log.Warn("no TLS: what is replayed can be read on the way")
	}
	fmt.Fprintf(os.Stderr, "worker listens at %s\n", l.Addr())
	w := replay.NewWorker(&replay.WorkerOptions{Secret: secret, Log: log})
	srv := w.Server(conf)
	srv.BaseContext = func(net.Listener) context.Context { return ctx }
	stop := context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = srv.Shutdown(end) // requests that take longer end with the process
	})
	defer stop()
	if conf != nil {
		err = srv.ServeTLS(l, "", "")
	} else {
		err = srv.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (f *workerFlags) tls() (*tls.Config, error) {
	if f.cert == "" && f.key == "" && f.clientCA == "" {
		return nil, nil
	}
	if f.cert == "" || f.key == "" {
		return nil, command.Usagef("TLS needs both --tls-cert and --tls-key")
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if f.clientCA == "" {
		return c, nil
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	c.ClientCAs, err = wire.Pool(f.clientCA)
	return c, err
}
