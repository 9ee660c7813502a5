package manage

import (
	"cmp"
	"context"
	"strings"

	"example.org/slipway/registry/replication"
	"example.org/slipway/web/format"
)

// Replication copies images to and from other registries by rules.
// *replication.Replicator implements it.
type Replication interface {
	// Status returns the state of each rule.
	Status(ctx context.Context) ([]replication.Status, error)
	// Replicate does a run of a rule.
	Replicate(ctx context.Context, args replication.Args, progress func(replication.Report)) (replication.Report, error)
}

// Replicate does a run of a rule, or finds out what it would do.
func Replicate(ctx context.Context, r Replication, rule string, dry bool, progress func(string)) (*Outcome, error) {
	rep, err := r.Replicate(ctx, replication.Args{Rule: strings.TrimSpace(rule), DryRun: dry}, func(rep replication.Report) {
		progress(cmp.Or(rep.Doing, "Comparing both sides.") + " " + format.Count(rep.Images) + " copied, " + format.Bytes(rep.Bytes))
	})
	o := &Outcome{Text: "Done.", Facts: []Fact{{"Repositories", format.Count(rep.Repositories)}, {"There already", format.Count(rep.Present)},
		{"Copied", format.Count(rep.Images) + " images, " + format.Bytes(rep.Bytes)}, {"Deleted", format.Count(rep.Deleted)}, {"Failed", format.Count(rep.Failed)}}}
	if dry {
		o.Text = "A preview: nothing was changed. This would be done."
		o.Facts[2].Value = format.Count(rep.Images) + " images"
		o.Head = []string{"What", "Image", "To", "Why"}
		for _, c := range rep.Changes {
			sep := ":"
			if strings.Contains(c.Reference, ":") {
				sep = "@"
			}
			o.Row(c.Action, c.Repository+sep+c.Reference, c.To, c.Reason)
		}
		return o, err
	}
	if len(rep.Errors) > 0 {
		o.Head = []string{"Failure"}
		for _, e := range rep.Errors {
			o.Row(e)
		}
	}
	return o, err
}
