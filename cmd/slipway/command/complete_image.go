package command

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.org/slipway/oci"
	"example.org/slipway/oci/client"
)

const (
	// completionPatience is how long a shell waits for a registry.
	completionPatience = 2 * time.Second
	// mostCompletions bounds how many names are offered to a shell.
	mostCompletions = 200
)

// completeImages lets shells complete the images in a command's arguments: repositories
// after "REGISTRY/" and, if tags is set, tags after "REGISTRY/REPOSITORY:". It uses the
// command's own flags, and asks the registry with the credentials that docker keeps.
func completeImages(tags bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
		none := cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		bare := text[strings.Index(text, "://")+1:]
		host, path, ok := strings.Cut(strings.TrimLeft(bare, "/"), "/")
		if !ok || host == "" {
			return nil, none
		}
		prefix := text[:len(text)-len(path)]
		f := RegistryFlags{plainHTTP: isSet(cmd, "plain-http"), Insecure: isSet(cmd, "insecure")}
		if fl := cmd.Flags().Lookup("credentials"); fl != nil {
			f.UserFile = fl.Value.String()
		}
		c, err := f.quietly(prefix)
		if err != nil {
			return nil, none
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), completionPatience)
		defer cancel()
		var names []cobra.Completion
		add := func(name string) error {
			names = append(names, prefix+name)
			if len(names) == mostCompletions {
				return io.EOF
			}
			return nil
		}
		if repo, tag, ok := strings.Cut(path, ":"); ok && tags {
			err = oci.EachName(func(last string, n int) ([]string, bool, error) { return c.Tags(ctx, repo, last, n) }, func(name string) error {
				if !strings.HasPrefix(name, tag) {
					return nil
				}
				return add(repo + ":" + name)
			})
		} else {
			err = oci.EachName(func(last string, n int) ([]string, bool, error) { return c.Repositories(ctx, last, n) }, func(name string) error {
				if !strings.HasPrefix(name, path) {
					return nil
				}
				return add(name)
			})
		}
		_ = err // the names that came before the error are offered
		return names, none
	}
}

// quietly opens a registry for a completion, which must not print anything.
func (f *RegistryFlags) quietly(s string) (*client.Client, error) {
	url, _ := f.Address(s)
	o := &client.Options{DockerConfig: f.UserFile == "", InsecureSkipVerify: f.Insecure, Logger: slog.New(slog.DiscardHandler)}
	var err error
	if o.Username, o.Password, err = f.User(); err != nil {
		return nil, err
	}
	return client.New(url, o)
}

func isSet(cmd *cobra.Command, flag string) bool {
	f := cmd.Flags().Lookup(flag)
	return f != nil && f.Value.String() == "true"
}

// imageCompletions lets shells complete the arguments of commands that take images of a
// registry, as their usage says.
func imageCompletions(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		imageCompletions(c)
		_, args, _ := strings.Cut(c.Use, " ")
		first, _, _ := strings.Cut(strings.TrimLeft(args, "["), " ")
		if c.ValidArgsFunction != nil || c.Flags().Lookup("plain-http") == nil {
			continue
		}
		switch strings.TrimRight(first, ".]") {
		case "IMAGE":
			c.ValidArgsFunction = completeImages(true)
		case "REGISTRY/REPOSITORY", "REGISTRY/REPOSITORY[@DIGEST", "REGISTRY[/PREFIX":
			c.ValidArgsFunction = completeImages(false)
		}
	}
}
