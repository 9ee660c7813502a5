package config

import "example.org/slipway/config/yamlfile"

// These are the types of values, and of what is reported about keys.
type (
	// Size is a number of bytes.
	Size = yamlfile.Size
	// Secret is a text that is never shown.
	Secret = yamlfile.Secret
	// Override is a value of the command line.
	Override = yamlfile.Override
	// Problem is one thing wrong with a configuration.
	Problem = yamlfile.Problem
	// Problems is the error that lists everything wrong with a configuration.
	Problems = yamlfile.Problems
	// Warning is a key that works but does not do what its author may think.
	Warning = yamlfile.Warning
	// Warnings lists what a server should log when it starts.
	Warnings = yamlfile.Warnings
)
