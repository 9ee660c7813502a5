package admin

import (
	"context"

	"example.org/slipway/oci"
	"example.org/slipway/oci/imagecopy"
	"example.org/slipway/registry"
	"example.org/slipway/registry/backup"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/check"
	"example.org/slipway/serve/dataroot"
)

// recheckArgs are the arguments for checking contents; see [check.Contents].
type recheckArgs struct {
	Contents []oci.Digest
	Quick    bool
}

type recheckReport struct {
	Damaged []oci.Digest `json:"damaged"`
}

func recheck(ctx context.Context, r *registry.Registry, args recheckArgs) (rep recheckReport, err error) {
	rep.Damaged, err = check.Contents(dataroot.PastCache(ctx), r, args.Contents, args.Quick)
	return rep, err
}

func (a *Admin) recheck(ctx context.Context, args recheckArgs) (recheckReport, error) {
	if a.local == nil {
		return askServer[recheckArgs, recheckReport](ctx, a, "recheck", args, nil)
	}
	return recheck(ctx, a.local.Registry, args)
}

// Copy copies images from another registry into the data root, and replaces what is
// damaged there. To find damage it reads the contents or, if quick is set, compares only
// their sizes.
func (a *Admin) Copy(ctx context.Context, src oci.Registry, o imagecopy.Options, quick bool) (imagecopy.Progress, error) {
	o.Check = func(ctx context.Context, contents []oci.Digest) ([]oci.Digest, error) {
		rep, err := a.recheck(ctx, recheckArgs{Contents: contents, Quick: quick})
		return rep.Damaged, err
	}
	return imagecopy.Copy(registry.Unnoticed(ctx), a.reg, src, o)
}

// tagTimesArgs are the arguments for giving a tag the times that it had in a backup; see
// [catalog.Retention.SetTagTimes].
type tagTimesArgs struct {
	Repo string
	Tag  catalog.TagInfo
}

func setTagTimes(ctx context.Context, r *registry.Registry, args tagTimesArgs) (struct{}, error) {
	return struct{}{}, r.Upkeep().Catalog.Retention.SetTagTimes(ctx, args.Repo, args.Tag)
}

func (a *Admin) setTagTimes(ctx context.Context, args tagTimesArgs) (err error) {
	if a.local == nil {
		_, err = askServer[tagTimesArgs, struct{}](ctx, a, "tag-times", args, nil)
		return err
	}
	_, err = setTagTimes(ctx, a.local.Registry, args)
	return err
}

// continueArgs say that the registry has received all images of a backup whose registry
// had the ID.
type continueArgs struct{ ID string }

func continues(ctx context.Context, r *registry.Registry, args continueArgs) (struct{}, error) {
	return struct{}{}, r.Continue(ctx, args.ID)
}

// continues records that the registry, which was empty, continues the registry of a
// backup.
func (a *Admin) continues(ctx context.Context, dir string) error {
	id, err := backup.RegistryOf(ctx, dir)
	if err != nil || id == "" {
		return err
	}
	if a.local == nil {
		_, err = askServer[continueArgs, struct{}](ctx, a, "continue", continueArgs{id}, nil)
		return err
	}
	return a.local.Registry.Continue(ctx, id)
}
