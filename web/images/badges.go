package images

import (
	"slices"
	"strings"
)

// Badges says in words what is attached to an image: a signature, an SBOM, provenance or
// other attestations. attached are the artifact types of what refers to the image, and
// hung the tags that hang on it. content is the image's manifest, because builders keep
// attestations in the index of an image. Nobody has verified what is attached.
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
