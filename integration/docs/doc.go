// Package docs runs what the documentation says. It runs the shell blocks of each page in order, in
// a throw-away environment, and makes registry and agent check the configurations.
package docs
