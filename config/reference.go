package config

import (
	"reflect"

	"example.org/slipway/config/yamlfile"
)

// Schema returns the JSON Schema (draft 2020-12) of a configuration file, for editors and
// for checks before a file is rolled out. It includes Distribution's keys that have no
// meaning here, and marks them as deprecated.
func Schema() []byte {
	return yamlfile.SchemaOf("Slipway registry server configuration", reflect.TypeFor[Config](), "", "version")
}

// AgentSchema returns the JSON Schema (draft 2020-12) of a configuration file of the
// node agent.
func AgentSchema() []byte {
	// This path excludes Distribution's keys, because they are looked up by their paths.
	return yamlfile.SchemaOf("Slipway node agent configuration", reflect.TypeFor[Agent](), "agent")
}

// Example returns a configuration file with every key, its meaning and its default. When
// it is read, it gives Default. Keys without a default (optional sections, entries of
// lists) are shown in comments.
func Example() string {
	return yamlfile.ExampleOf(reflect.ValueOf(Default()).Elem(), "Configuration of the Slipway registry server, with every key and its default.",
		"Keys that are commented out have none.")
}
