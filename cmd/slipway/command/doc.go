// Package command has what the commands of slipway share: the flags that name a server, a
// registry or an image, the formats of answers, progress, hints after wrong use, and exit
// statuses.
package command
