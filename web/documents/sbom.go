package documents

import (
	"encoding/json"
	"strings"
)

// cycloneDX reads a bill of materials in CycloneDX, which may also list vulnerabilities.
func cycloneDX(content []byte) (*Document, error) {
	type license struct {
		Expression string `json:"expression"`
		License    struct{ ID, Name string }
	}
	type component struct {
		Type, Group, Name, Version string
		Ref                        string `json:"bom-ref"`
		Licenses                   []license
	}
	var in struct {
		Metadata struct {
			Timestamp string
			// Tools is a list in older versions and an object in newer ones.
			Tools json.RawMessage
		}
		Components      []component
		Vulnerabilities []struct {
			ID, Description string
			Ratings         []struct {
				Severity string
				Score    float64
			}
			Affects []struct{ Ref string }
		}
	}
	if err := decode(content, &in); err != nil {
		return nil, err
	}
	d := &Document{Format: "CycloneDX", Made: in.Metadata.Timestamp, Tool: cycloneTool(in.Metadata.Tools), Report: len(in.Vulnerabilities) > 0}
	byRef := map[string]component{}
	for _, c := range in.Components {
		var licenses []string
		for _, l := range c.Licenses {
			licenses = append(licenses, firstOf(l.Expression, l.License.ID, l.License.Name))
		}
		if c.Group != "" {
			c.Name = c.Group + "/" + c.Name
		}
		byRef[c.Ref] = c
		d.Components = append(d.Components, Component{c.Name, c.Version, joined(licenses), c.Type})
	}
	for _, v := range in.Vulnerabilities {
		f := Finding{ID: v.ID, Title: v.Description, Severity: "unknown"}
		for _, r := range v.Ratings {
			if f.Severity = severity(r.Severity); f.Severity == "unknown" {
				f.Severity = scored(r.Score)
			}
			if f.Severity != "unknown" {
				break
			}
		}
		if len(v.Affects) > 0 {
			c := byRef[v.Affects[0].Ref]
			f.Package, f.Version = firstOf(c.Name, v.Affects[0].Ref), c.Version
		}
		d.Findings = append(d.Findings, f)
	}
	return d, nil
}

// cycloneTool names the first tool of CycloneDX metadata, in either form.
func cycloneTool(raw json.RawMessage) string {
	type tool struct{ Name, Version string }
	var list []tool
	if json.Unmarshal(raw, &list) != nil {
		var object struct{ Components []tool }
		if json.Unmarshal(raw, &object) != nil {
			return ""
		}
		list = object.Components
	}
	if len(list) == 0 {
		return ""
	}
	return strings.TrimSpace(list[0].Name + " " + list[0].Version)
}

// spdx reads a bill of materials in SPDX 2.
func spdx(content []byte) (*Document, error) {
	var in struct {
		CreationInfo struct {
			Created  string
			Creators []string
		}
		Packages []struct {
			Name             string
			Version          string `json:"versionInfo"`
			LicenseConcluded string
			LicenseDeclared  string
			Purpose          string `json:"primaryPackagePurpose"`
		}
	}
	if err := decode(content, &in); err != nil {
		return nil, err
	}
	d := &Document{Format: "SPDX", Made: in.CreationInfo.Created}
	for _, c := range in.CreationInfo.Creators {
		if tool, ok := strings.CutPrefix(c, "Tool: "); ok && d.Tool == "" {
			d.Tool = tool
		}
	}
	said := func(license string) string {
		if license == "NOASSERTION" || license == "NONE" {
			return ""
		}
		return license
	}
	for _, p := range in.Packages {
		d.Components = append(d.Components, Component{p.Name, p.Version, firstOf(said(p.LicenseConcluded), said(p.LicenseDeclared)), strings.ToLower(p.Purpose)})
	}
	return d, nil
}

func firstOf(list ...string) string {
	for _, s := range list {
		if s != "" {
			return s
		}
	}
	return ""
}

// joined joins the texts that are not empty.
func joined(list []string) string {
	var out []string
	for _, s := range list {
		if s != "" {
			out = append(out, s)
		}
	}
	return strings.Join(out, ", ")
}
