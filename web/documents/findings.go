package documents

import "strconv"

// sarif reads a report in SARIF 2.1.
func sarif(content []byte) (*Document, error) {
	type rule struct {
		ID               string
		ShortDescription struct{ Text string }
		Properties       struct {
			// Score is a CVSS score, in words of GitHub's dialect.
			Score    string `json:"security-severity"`
			Severity string
		}
	}
	var in struct {
		Runs []struct {
			Tool struct {
				Driver struct {
					Name, Version string
					Rules         []rule
				}
			}
			Results []struct {
				RuleID, Level string
				RuleIndex     *int
				Message       struct{ Text string }
				Locations     []struct {
					PhysicalLocation struct {
						ArtifactLocation struct{ URI string }
					}
				}
			}
		}
	}
	if err := decode(content, &in); err != nil {
		return nil, err
	}
	d := &Document{Format: "SARIF", Report: true}
	for _, run := range in.Runs {
		driver := &run.Tool.Driver
		d.Tool = firstOf(d.Tool, joinWords(driver.Name, driver.Version))
		byID := map[string]*rule{}
		for i := range driver.Rules {
			byID[driver.Rules[i].ID] = &driver.Rules[i]
		}
		for _, r := range run.Results {
			found := byID[r.RuleID]
			if found == nil && r.RuleIndex != nil && *r.RuleIndex >= 0 && *r.RuleIndex < len(driver.Rules) {
				found = &driver.Rules[*r.RuleIndex]
			}
			if found == nil {
				found = &rule{ID: r.RuleID}
			}
			f := Finding{ID: firstOf(r.RuleID, found.ID), Title: firstOf(found.ShortDescription.Text, r.Message.Text), Severity: severity(found.Properties.Severity)}
			if score, err := strconv.ParseFloat(found.Properties.Score, 64); err == nil && f.Severity == "unknown" {
				f.Severity = scored(score)
			}
			if f.Severity == "unknown" {
				f.Severity = map[string]string{"error": "high", "warning": "medium", "note": "low"}[r.Level]
			}
			if f.Severity == "" {
				f.Severity = "unknown"
			}
			if len(r.Locations) > 0 {
				f.Package = r.Locations[0].PhysicalLocation.ArtifactLocation.URI
			}
			d.Findings = append(d.Findings, f)
		}
	}
	return d, nil
}

// trivy reads a report of Trivy.
func trivy(content []byte) (*Document, error) {
	var in struct {
		CreatedAt string
		Results   []struct {
			Vulnerabilities []struct {
				VulnerabilityID, PkgName, InstalledVersion, FixedVersion, Severity, Title string
			}
		}
	}
	if err := decode(content, &in); err != nil {
		return nil, err
	}
	d := &Document{Format: "Trivy JSON", Tool: "Trivy", Made: in.CreatedAt, Report: true}
	for _, r := range in.Results {
		for _, v := range r.Vulnerabilities {
			d.Findings = append(d.Findings, Finding{v.VulnerabilityID, severity(v.Severity), v.PkgName, v.InstalledVersion, v.FixedVersion, v.Title})
		}
	}
	return d, nil
}

func joinWords(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + " " + b
}
