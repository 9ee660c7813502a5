// Package docs runs what the documentation says. It runs the shell blocks of each page in order, in
// a throw-away environment, makes registry and agent check the configurations, and looks up the
// commands and the messages that pages quote.
package docs
