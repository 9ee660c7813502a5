package images

import (
	"context"
	"slices"
	"strings"

	"example.org/slipway/oci"
)

// Badges says in words what is attached to an image: a signature, an SBOM, provenance or
// other attestations. attached are the artifact types of what refers to the image, and
// hung the tags that hang on it. content is the image's manifest, because builders keep
// attestations in the index of an image. Nothing is verified here; see Verified.
func Badges(attached, hung []string, content []byte) []string {
	found := map[string]bool{}
	for _, t := range attached {
		switch kind := attachment(t); {
		case strings.Contains(t, "provenance"):
			found["provenance"] = true
		case strings.Contains(t, "sarif") || strings.Contains(t, "trivy") || strings.Contains(t, "vuln"):
			found["vulnerability report"] = true
		case kind != "" && kind != "Helm chart":
			found[kind] = true
		}
	}
	for _, tag := range hung {
		for suffix, kind := range map[string]string{".sig": "signature", ".att": "attestation", ".sbom": "SBOM"} {
			if strings.HasSuffix(tag, suffix) {
				found[kind] = true
			}
		}
	}
	for _, e := range readManifest(content).Manifests {
		if e.Annotations["vnd.docker.reference.type"] == "attestation-manifest" {
			found["attestation"] = true
		}
	}
	var out []string
	for _, kind := range []string{"signature", "SBOM", "provenance", "attestation", "vulnerability report"} {
		if found[kind] {
			out = append(out, kind)
		}
	}
	return slices.Clip(out)
}

// Verified returns the badges of an image, with who has signed it in place of the mark that
// it has a signature.
func (p *Pages) Verified(ctx context.Context, repo string, d oci.Digest, badges []string) []string {
	at := slices.Index(badges, "signature")
	if at < 0 {
		return badges
	}
	list, err := p.opts.Browse.Signatures(ctx, repo, d)
	if err != nil {
		p.opts.Logger.WarnContext(ctx, "signatures cannot be verified", "repo", repo, "digest", d, "err", err)
		return badges
	}
	var names []string
	bad := len(list) > 0
	for _, s := range list {
		names = append(names, s.Keys...)
		bad = bad && s.Bad
	}
	slices.Sort(names)
	badges = slices.Clone(badges)
	switch names = slices.Compact(names); {
	case len(names) > 0:
		badges[at] = "signed: " + strings.Join(names, ", ")
	case bad:
		badges[at] = notVerified
	}
	return badges
}

// notVerified marks an image whose signatures were all made with other keys, or for other
// content.
const notVerified = "signature does not verify"
