package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"example.org/slipway/oci/client"
	"example.org/slipway/registry"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/check"
)

// FsckSource is where a repair gets good copies of damaged or missing content: a backup
// or another registry.
type FsckSource struct {
	// Backup is the absolute path of a backup's directory. It is empty if the source is a
	// registry.
	Backup string
	// Registry is the URL of the registry. If Repo is set, all content is looked up in
	// that repository. Otherwise content is looked up in repositories of the same names
	// as here.
	Registry, Repo string
	Credential     client.Credential
	Insecure       bool // do not verify the certificate
}

// open opens the source. The caller must call close.
func (s *FsckSource) open(ctx context.Context) (src check.Source, close func(context.Context) error, err error) {
	if s.Backup != "" {
		r, close, err := backup.Open(ctx, s.Backup, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, nil, err
		}
		return check.Stored(r), close, nil
	}
	c, err := client.New(s.Registry, &client.Options{InsecureSkipVerify: s.Insecure,
		Credential: func(context.Context, string) (client.Credential, error) { return s.Credential, nil }})
	if err != nil {
		return nil, nil, err
	}
	return check.Other(c, s.Repo), func(context.Context) error { c.Close(); return nil }, nil
}

func fsck(ctx context.Context, r *registry.Registry, args FsckArgs, progress func(check.Report)) (_ check.Report, err error) {
	o := check.Options{Quick: args.Quick, Repair: args.Repair, EmptyQuarantine: args.EmptyQuarantine,
		GiveUpMany: args.GiveUpMany, AdoptStore: args.AdoptStore, Parallel: args.Parallel, Progress: progress}
	if args.From != nil {
		src, closeSource, openErr := args.From.open(ctx)
		if openErr != nil {
			return check.Report{}, fmt.Errorf("open the source of the repair: %w", openErr)
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			err = errors.Join(err, closeSource(ctx))
		}()
		o.From = src
	}
	return check.Run(ctx, r, o)
}
