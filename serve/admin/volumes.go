package admin

import (
	"context"
	"errors"

	volumeregistry "example.org/slipway/volume/service"
)

// VolumesReport is what a data root has of volumes.
type VolumesReport struct {
	volumeregistry.Status
	// Images lists all images, if they were requested.
	Images []volumeregistry.Listed `json:"images,omitempty"`
}

// VolumesArgs are the arguments of [Admin.Volumes].
type VolumesArgs struct {
	// List requests the list of all images.
	List bool
}

// errNoVolumes says that images are not built as volumes here.
var errNoVolumes = errors.New("images are not built as volumes here: volumes.driver is empty")

// HasVolumes reports whether images are built as volumes.
func (a *Admin) HasVolumes() bool { return a.cfg.Volumes.Driver != "" }

// Volumes returns the state of the volume side. It is an error if there is none.
func (a *Admin) Volumes(ctx context.Context, args VolumesArgs) (*VolumesReport, error) {
	if !a.HasVolumes() {
		return nil, errNoVolumes
	}
	if a.local == nil {
		return askServer[VolumesArgs, *VolumesReport](ctx, a, "volumes", args, nil)
	}
	return volumesReport(ctx, a.local.Volumes, args)
}

func volumesReport(ctx context.Context, v *volumeregistry.Service, args VolumesArgs) (*VolumesReport, error) {
	if v == nil {
		return nil, errNoVolumes
	}
	st, err := v.Status(ctx)
	rep := &VolumesReport{Status: st}
	const page = 512
	for after := int64(0); err == nil && args.List; {
		var list []volumeregistry.Listed
		list, err = v.List(ctx, "", after, page)
		if len(list) == 0 {
			break
		}
		after = list[len(list)-1].ID
		rep.Images = append(rep.Images, list...)
	}
	return rep, err
}
