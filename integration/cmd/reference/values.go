package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"example.org/slipway/config"
)

// valuesSchema returns the schema of the chart's values in file. In it, config and
// agent.config have the schemas of the two configurations, because the chart sets parts
// of these.
func valuesSchema(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	schema, err := object(b)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	for _, part := range []struct {
		path   []string
		schema []byte
	}{
		{[]string{"properties"}, config.Schema()},
		{[]string{"properties", "agent", "properties"}, config.AgentSchema()},
	} {
		own, err := object(part.schema)
		if err != nil {
			return "", err
		}
		for _, key := range []string{"$schema", "title", "required"} {
			delete(own, key)
		}
		at := schema
		for _, step := range part.path {
			next, ok := at[step].(map[string]any)
			if !ok {
				return "", fmt.Errorf("%s: no %s in %v", file, step, part.path)
			}
			at = next
		}
		at["config"] = lean(own)
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err = e.Encode(schema)
	return out.String(), err
}

// lean removes from a schema everything that is not used to check values. Helm stores the
// chart in every release, and docs/config.md has the descriptions.
func lean(schema map[string]any) map[string]any {
	for _, key := range []string{"description", "default", "deprecated"} {
		delete(schema, key)
	}
	if properties, ok := schema["properties"].(map[string]any); ok {
		for _, p := range properties {
			if p, ok := p.(map[string]any); ok {
				lean(p)
			}
		}
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if below, ok := schema[key].(map[string]any); ok {
			lean(below)
		}
	}
	return schema
}

// object reads a JSON object, and leaves numbers as they are written.
func object(b []byte) (o map[string]any, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	err = d.Decode(&o)
	return o, err
}
