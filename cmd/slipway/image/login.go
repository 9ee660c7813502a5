package image

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/oci/client"
)

func loginCommand() *cobra.Command {
	var f command.RegistryFlags
	var user string
	var stdin bool
	cmd := &cobra.Command{
		Use:   "login REGISTRY",
		Short: "Keep a user name and password for a registry",
		Long: `Check a user name and password with a registry, and keep them where docker login does: in
$DOCKER_CONFIG/config.json or ~/.docker/config.json, or in the credential helper that this file
names. All commands of slipway, docker, podman, skopeo and others find them there. Passwords
that podman login and skopeo login keep in their own file are found, too.

Without a helper the password lies in the file as it is, readable by you alone.`,
		Example: `  slipway login registry.example.com
  slipway login --username ci --password-stdin registry.example.com < password`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			url, path := f.Address(args[0])
			if path != "" {
				return command.Usagef("%s is more than a registry; name only its host", args[0])
			}
			cred, err := askLogin(cmd.InOrStdin(), cmd.ErrOrStderr(), user, stdin)
			if err != nil {
				return err
			}
			c, err := client.New(url, &client.Options{Username: cred.Username, Password: cred.Password, InsecureSkipVerify: f.Insecure})
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.Ping(cmd.Context()); err != nil {
				return fmt.Errorf("%w; nothing was kept", err)
			}
			_, host, _ := strings.Cut(url, "://")
			file, err := client.DockerLogin(cmd.Context(), "", host, cred)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s has %s's password for %s now\n", file, cred.Username, host)
			return nil
		},
	}
	f.AddConnection(cmd.Flags(), "the registry", "it")
	cmd.Flags().StringVarP(&user, "username", "u", "", "user name (default: ask for it)")
	cmd.Flags().BoolVar(&stdin, "password-stdin", false, "read the password from standard input")
	return cmd
}

// askLogin returns the credential that a user enters. It asks on the terminal for the
// password, and for the name if user is empty. If stdin is set, it reads the password
// from the reader named in instead.
func askLogin(in io.Reader, out io.Writer, user string, stdin bool) (client.Credential, error) {
	cred := client.Credential{Username: user}
	terminal, _ := in.(*os.File)
	if terminal != nil && !term.IsTerminal(int(terminal.Fd())) {
		terminal = nil
	}
	if stdin {
		if user == "" {
			return cred, command.Usagef("--password-stdin needs --username")
		}
		var err error
		if cred.Password, err = command.ReadSecret("-", in); err != nil {
			return cred, err
		}
	} else {
		if terminal == nil {
			return cred, command.Usagef("standard input is no terminal; use --username and --password-stdin")
		}
		if user == "" {
			fmt.Fprint(out, "User name: ")
			line, err := bufio.NewReader(terminal).ReadString('\n')
			if err != nil {
				return cred, fmt.Errorf("read the user name: %w", err)
			}
			cred.Username = strings.TrimSpace(line)
		}
		fmt.Fprint(out, "Password: ")
		b, err := term.ReadPassword(int(terminal.Fd()))
		fmt.Fprintln(out)
		if err != nil {
			return cred, fmt.Errorf("read the password: %w", err)
		}
		cred.Password = string(b)
	}
	if cred.Username == "" || cred.Password == "" {
		return cred, errors.New("the user name or the password is empty; nothing was kept")
	}
	return cred, nil
}

func logoutCommand() *cobra.Command {
	var f command.RegistryFlags
	cmd := &cobra.Command{
		Use:     "logout REGISTRY",
		Short:   "Forget the user name and password for a registry",
		Long:    `Remove what slipway login or docker login kept for a registry.`,
		Example: `  slipway logout registry.example.com`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			url, path := f.Address(args[0])
			if path != "" {
				return command.Usagef("%s is more than a registry; name only its host", args[0])
			}
			_, host, _ := strings.Cut(url, "://")
			file, err := client.DockerLogout(cmd.Context(), "", host)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s has no password for %s any more\n", file, host)
			return nil
		},
	}
	return cmd
}
