package server

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"example.org/slipway/cmd/slipway/command"
	"example.org/slipway/oci/client"
	"example.org/slipway/serve/dataroot"
)

// fsckSource returns where a repair gets good copies: from a backup if from is a
// directory, and otherwise from a registry. It looks up this user's credentials here,
// because the repairing server may not be able to read them.
func fsckSource(ctx context.Context, f *command.RegistryFlags, from string) (*dataroot.FsckSource, error) {
	if from == "" {
		return nil, nil
	}
	if _, err := os.Stat(from); err == nil || filepath.IsAbs(from) || strings.HasPrefix(from, ".") {
		dir, err := filepath.Abs(from)
		return &dataroot.FsckSource{Backup: dir}, err
	}
	url, repo := f.Address(from)
	src := &dataroot.FsckSource{Registry: url, Repo: repo, Insecure: f.Insecure}
	if f.UserFile != "" {
		name, password, err := f.User()
		src.Credential = client.Credential{Username: name, Password: password}
		return src, err
	}
	ask, err := client.DockerCredential("")
	if err != nil {
		return nil, err
	}
	_, host, _ := strings.Cut(url, "://")
	src.Credential, err = ask(ctx, host)
	return src, err
}
