// Package docs runs what the documentation says: the shell blocks of each page, in their
// order, in an environment that is thrown away, and it has registry and agent check the
// configurations.
package docs
