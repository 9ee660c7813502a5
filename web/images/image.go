package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strings"

	"example.org/slipway/gear"
	"example.org/slipway/oci"
	"example.org/slipway/registry/catalog"
	"example.org/slipway/registry/catalog/browse"
	"example.org/slipway/web/documents"
)

const (
	// maxShownConfig is how many bytes are read of a config. maxShownManifest is how many
	// bytes are shown of a manifest.
	maxShownConfig, maxShownManifest = 4 << 20, 256 << 10
	// maxAttached is how many manifests that refer to an image are listed. maxPointers is
	// how many tags and indexes are listed.
	maxAttached, maxPointers = 100, 100
	// maxIndented is the greatest depth of a manifest that is indented. Each level adds
	// two bytes for each bracket in it.
	maxIndented = 32
	// maxLayerStates is how many layers are looked up.
	maxLayerStates = 200
)

// partRow is a row for a manifest of an index.
type partRow struct {
	oci.Descriptor
	Platform, Ref string
	// Of is the digest of the manifest that an attestation is about.
	Of string
}

// layerRow is a row for a layer, or for another content of an artifact.
type layerRow struct {
	oci.Descriptor
	Number int
	Title  string
	State  LayerState
	// Known reports that State was looked up.
	Known bool
}

// attachedRow is a row for a manifest that refers to the image.
type attachedRow struct {
	Kind, Type, Ref string
	Digest          oci.Digest
	Size            int64
	Tag             string
}

// imageData is what the page of an image shows.
type imageData struct {
	Repo, Ref, Tag string
	// Self is the address of the image by digest.
	Self     string
	Manifest catalog.Manifest
	Use      browse.ManifestUse
	Kind     Kind
	Type     string

	Parts, Attested []partRow
	MoreParts       int
	Config          *imageConfig
	ConfigProblem   string
	Facts           []fact
	Env             []string
	Labels          []fact
	MoreLabels      int
	MoreEnv         int
	Annotations     []fact
	MoreAnnotations int
	Steps           []step
	MoreSteps       int
	Layers          []layerRow
	MoreLayers      int
	LayerBytes      int64
	Attached        []attachedRow
	MoreAttached    bool
	Subject         *attachedRow
	Indexes         []attachedRow
	JSON            string
	JSONCut         bool
	ManifestBytes   int64
	Commands        []fact
	// Chart and ChartFiles are of a Helm chart. Document is what an SBOM or a report says.
	Chart      *documents.Chart
	ChartFiles documents.ChartFiles
	Document   *documents.Document
	Starts     []start
	MayDelete  bool
}

// Image returns the data of the page image: of an image, or of whatever else a manifest
// describes. Errors: as for [Absent].
func (p *Pages) Image(r *http.Request, at Ref, v Viewer) (any, error) {
	q := &request{p, v, r}
	m, err := at.Read(q.ctx(), p.opts.Browse)
	if err != nil {
		return nil, err
	}
	d := &imageData{Repo: at.Repo, Ref: at.Ref, Manifest: m, Self: DigestLink(at.Repo, m.Digest), MayDelete: v.MayDelete}
	if !oci.IsDigest(at.Ref) {
		d.Tag = at.Ref
	}
	return d, q.describe(d)
}

// describe fills in everything about the manifest.
func (q *request) describe(d *imageData) (err error) {
	b := q.opts.Browse
	if d.Use, err = b.ManifestUse(q.ctx(), d.Repo, d.Manifest.Digest, maxPointers); err != nil {
		return err
	}
	for _, i := range d.Use.Indexes {
		d.Indexes = append(d.Indexes, attachedRow{Digest: i, Ref: DigestLink(d.Repo, i)})
	}
	m := readManifest(d.Manifest.Content)
	d.Kind, d.Type = kindOf(d.Manifest.MediaType, d.Manifest.ArtifactType, m), d.Manifest.ArtifactType
	if d.Kind.Image {
		d.Type = "" // that is the type of the config, which says nothing
	}
	d.Annotations, d.MoreAnnotations = sortedFacts(m.Annotations)
	if m.Subject != nil {
		d.Subject = &attachedRow{Digest: m.Subject.Digest, Ref: DigestLink(d.Repo, m.Subject.Digest)}
	}
	d.parts(m)
	if err := q.layers(d, m); err != nil {
		return err
	}
	if err := q.config(d, m); err != nil {
		return err
	}
	if err := q.content(d, m); err != nil {
		return err
	}
	if err := q.attached(d); err != nil {
		return err
	}
	d.ManifestBytes = int64(len(d.Manifest.Content))
	d.Starts = q.starts(d)
	d.JSON, d.JSONCut = pretty(d.Manifest.Content)
	d.Commands = q.commands(d)
	return nil
}

// parts lists the manifests of an index.
func (d *imageData) parts(m manifest) {
	list, more := someOf(m.Manifests)
	d.MoreParts = more
	for _, e := range list {
		p := partRow{Descriptor: e, Platform: entryPlatform(&e), Ref: DigestLink(d.Repo, e.Digest)}
		if p.Of = e.Annotations["vnd.docker.reference.digest"]; p.Of != "" {
			d.Attested = append(d.Attested, p)
			continue
		}
		d.Parts = append(d.Parts, p)
	}
}

// layers lists the contents of a manifest, with the states of the layers.
func (q *request) layers(d *imageData, m manifest) error {
	list, more := someOf(m.Layers)
	d.MoreLayers = more
	for i, l := range list {
		row := layerRow{Descriptor: l, Number: i + 1, Title: l.Annotations["org.opencontainers.image.title"]}
		if i < maxLayerStates && oci.ValidDigest(l.Digest) {
			var err error
			if row.State, err = q.opts.Browse.Layer(q.ctx(), d.Repo, l.Digest); err != nil {
				return err
			}
			if row.State.Failure != "" && !q.Admin {
				row.State.Failure = q.toldFailure(d.Repo, l.Digest)
			}
			row.Known = true
		}
		d.LayerBytes = plus(d.LayerBytes, l.Size)
		d.Layers = append(d.Layers, row)
	}
	return nil
}

// toldFailure returns why a layer could not be converted, for users who do not manage the
// registry. It says what is wrong with the layer, but nothing about the server's paths
// and stores.
func (q *request) toldFailure(repo string, d oci.Digest) string {
	var pending *gear.PendingError
	if f := q.opts.Files; f != nil && errors.As(f.MayLook(q.ctx(), repo, d), &pending) && pending.Reason != "" {
		return pending.Reason
	}
	return "it is tried again"
}

// plus adds a size from a manifest to a sum. The size is untrusted: it may be negative,
// or so large that the sum overflows.
func plus(sum, size int64) int64 {
	size = max(0, size)
	if sum > math.MaxInt64-size {
		return math.MaxInt64
	}
	return sum + size
}

// config reads the config of an image. If it cannot be read, the page says so.
func (q *request) config(d *imageData, m manifest) error {
	if !d.Kind.Image || d.Kind.Index || m.Config == nil {
		return nil
	}
	c, problem, err := q.readConfig(d.Repo, m)
	if err != nil {
		return err
	}
	d.ConfigProblem = problem
	d.Config, d.Facts = c, configFacts(c)
	d.Env, d.MoreEnv = someOf(c.Config.Env)
	d.Labels, d.MoreLabels = sortedFacts(c.Config.Labels)
	history, more := someOf(c.History)
	layers, _ := someOf(m.Layers)
	d.Steps, d.MoreSteps = build(history, layers), more
	return nil
}

// attached finds what was attached to the image: by its subject, and by a tag like the
// tags that cosign makes.
func (q *request) attached(d *imageData) error {
	b := q.opts.Browse
	list, more, err := b.Attached(q.ctx(), d.Repo, d.Manifest.Digest, maxAttached)
	if err != nil {
		return err
	}
	d.MoreAttached = more
	for _, r := range list {
		row := attachedRow{Kind: attachment(r.ArtifactType), Type: r.ArtifactType, Digest: r.Digest, Size: r.Size, Ref: DigestLink(d.Repo, r.Digest)}
		if row.Kind == "" {
			row.Kind = "artifact"
		}
		if use, err := b.ManifestUse(q.ctx(), d.Repo, r.Digest, 1); err == nil {
			row.Size = use.Size
		}
		d.Attached = append(d.Attached, row)
	}
	for _, s := range []struct{ suffix, kind string }{{".sig", "signature"}, {".att", "attestation"}, {".sbom", "SBOM"}} {
		tag := strings.Replace(string(d.Manifest.Digest), ":", "-", 1) + s.suffix
		m, err := b.Tag(q.ctx(), d.Repo, tag)
		if Absent(err) {
			continue
		}
		if err != nil {
			return err
		}
		row := attachedRow{Kind: s.kind, Type: "by a tag", Tag: tag, Digest: m.Digest, Ref: TagLink(d.Repo, tag)}
		if use, err := b.ManifestUse(q.ctx(), d.Repo, m.Digest, 1); err == nil {
			row.Size = use.Size
		}
		d.Attached = append(d.Attached, row)
	}
	signed, err := b.Signatures(q.ctx(), d.Repo, d.Manifest.Digest)
	for _, s := range signed {
		for i := range d.Attached {
			switch row := &d.Attached[i]; {
			case row.Digest != s.Manifest:
			case len(s.Keys) > 0:
				row.Kind = "signature, verified: " + strings.Join(s.Keys, ", ")
			case s.Bad:
				row.Kind = notVerified
			}
		}
	}
	return err
}

// pretty indents a manifest for reading, up to the size that is shown.
func pretty(content []byte) (text string, cut bool) {
	if len(content) <= maxShownManifest {
		var b bytes.Buffer
		if _, deepest := oci.JSONShape(content); deepest <= maxIndented && json.Indent(&b, content, "", "  ") == nil {
			content = b.Bytes()
		}
	}
	if cut = len(content) > maxShownManifest; cut {
		content = content[:maxShownManifest]
	}
	return strings.ToValidUTF8(string(content), "\uFFFD"), cut
}

// commands lists the commands that pull the image.
func (q *request) commands(d *imageData) []fact {
	ref := q.Host + "/" + d.Repo + ":" + d.Tag
	if d.Tag == "" {
		ref = q.Host + "/" + d.Repo + "@" + string(d.Manifest.Digest)
	}
	flag := func(s string) string {
		if q.Plain {
			return s + " "
		}
		return ""
	}
	if d.Kind.Chart {
		c := "helm pull " + flag("--plain-http") + "oci://" + q.Host + "/" + d.Repo
		if d.Tag != "" {
			c += " --version " + strings.ReplaceAll(d.Tag, "_", "+")
		} else {
			c += "@" + string(d.Manifest.Digest)
		}
		return []fact{{"Helm", c}}
	}
	if !d.Kind.Image {
		return []fact{{"ORAS", "oras pull " + flag("--plain-http") + ref}}
	}
	return []fact{{"Docker", "docker pull " + ref}, {"containerd", "ctr images pull " + flag("--plain-http") + ref},
		{"Podman", "podman pull " + flag("--tls-verify=false") + ref}, {"Lazily", "slipway run " + ref}, {"Its files only", "slipway mount " + ref + " DIRECTORY"}}
}
